"""A name with a leading underscore belongs to its module: no other module of the product takes it."""

from pathlib import Path

from tests.house.sources import Sources


def test_no_module_takes_a_private_name_of_another() -> None:
    sources = Sources()
    assert len(sources.modules) > 100
    assert [told for module in sources.modules for told in sources.private_names(module)] == []


def test_both_ways_to_take_one_are_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cellar.py").write_text("_wine = 1\nbeer = 2\n")
    (package / "thief.py").write_text(
        "from house import cellar as below\nfrom house.cellar import _wine, beer\n\n\ndef drink() -> int:\n"
        "    return below._wine + below.beer + below.__name__.count('c')\n"
    )
    assert [*Sources(package).private_names("house.thief")] == [
        "house.thief imports _wine from house.cellar",
        "house.thief uses house.cellar._wine (line 6)",
    ]
