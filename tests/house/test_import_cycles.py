"""No module of the product imports, over any number of others, itself; imports under TYPE_CHECKING count.

import-linter orders the folders, and does not see a cycle inside one of them.
"""

import graphlib
from pathlib import Path

import pytest
from tests.house.sources import Sources


def require_no_cycle(sources: Sources) -> None:
    """Raises `graphlib.CycleError`, which names the modules of one."""
    graph = {module: {found.module for found in sources.imports(module)} for module in sources.modules}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_module_imports_itself_over_others() -> None:
    sources = Sources()
    assert len(sources.modules) > 100
    require_no_cycle(sources)


def test_a_cycle_that_only_type_checkers_see_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kitchen.py").write_text("from house.cellar import Wine\n")
    (package / "cellar.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from house import kitchen\n\nclass Wine: ...\n"
    )
    with pytest.raises(graphlib.CycleError, match=r"house\.(cellar|kitchen)"):
        require_no_cycle(Sources(package))
