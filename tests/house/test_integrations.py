"""Adapters of frameworks: nothing depends on them, each has its page, its example and its versions, and no framework is
needed to import one."""

import ast
from pathlib import Path

import pytest
from tests.house.sources import PRODUCT, ROOT, Sources

FOLDER = PRODUCT / "integrations"
SHARED = {"__init__", "history", "lightning_state", "loose_parameters", "open_loaders", "ray_hosts", "wrapping"}
ADAPTERS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)
FRAMEWORKS = {"accelerate", "deepspeed", "lightning", "megatron", "ray", "torchmetrics", "torchtitan", "transformers"}
EXAMPLES = {  # not named as what they import
    "accelerate": "accelerate_loop",
    "deepspeed": "deepspeed_zero1",
    "fabric": "fabric_loop",
    "lightning": "lightning_module",
    "megatron": "megatron_core",
    "ray": "ray_train",
    "torchtitan": "torchtitan_debug",
}
VERSIONS = {"accelerate": "hugging_face", "fabric": "lightning"}


def test_nothing_of_the_product_imports_them() -> None:
    sources = Sources()
    below = "understudy.integrations"
    importers = {
        module
        for module in sources.modules
        if not module.startswith(below) and any(taken.module.startswith(below) for taken in sources.imports(module))
    }
    assert importers == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_each_has_a_page_an_example_and_exact_versions(adapter: str) -> None:
    assert (ROOT / "docs" / "frameworks" / f"{adapter}.md").is_file()
    assert (ROOT / "examples" / "frameworks" / f"{EXAMPLES.get(adapter, adapter)}.py").is_file()
    versions = (ROOT / "constraints" / f"{VERSIONS.get(adapter, adapter)}.txt").read_text().splitlines()
    assert all(line.startswith("#") or line.count("==") == 1 for line in versions)
    assert f"docs/frameworks/{adapter}.md" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_framework_is_imported_only_where_it_is_used(path: Path) -> None:
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top for alias in node.names} | {
        node.module or "" for node in top if isinstance(node, ast.ImportFrom)
    }
    assert not {name.partition(".")[0] for name in names} & FRAMEWORKS
