"""What the modules of a package import from each other, read from their syntax trees; none of them is imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "src" / "understudy"


@dataclass(frozen=True, slots=True)
class Import:
    """`name`: what was taken from the module, or None where the module itself was imported. `known_as`: in the text
    that follows."""

    module: str
    name: str | None
    known_as: str


class Sources:
    """`package`: a folder with an `__init__.py`. `modules`: by full name."""

    def __init__(self, package: Path = PRODUCT) -> None:
        self._above = package.parent
        self.modules = {self._name(path): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self._above).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imports(self, module: str) -> Iterator[Import]:
        """From the same package: at the top of the module, inside functions, and under TYPE_CHECKING."""
        for node in ast.walk(self.modules[module]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.modules:
                        yield Import(alias.name, None, alias.asname or alias.name)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{module}: a relative import, which is not read here"
                for alias in node.names:
                    whole, known_as = f"{node.module}.{alias.name}", alias.asname or alias.name
                    if whole in self.modules:
                        yield Import(whole, None, known_as)
                    elif node.module in self.modules:
                        yield Import(node.module, alias.name, known_as)

    def private_names(self, module: str) -> Iterator[str]:
        """Names with a leading underscore that the module takes from another one."""
        found = [*self.imports(module)]
        for taken in found:
            if taken.name is not None and _is_private(taken.name):
                yield f"{module} imports {taken.name} from {taken.module}"
        known = {taken.known_as: taken.module for taken in found if taken.name is None}
        for node in ast.walk(self.modules[module]):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                whose = known.get(ast.unparse(node.value))
                if whose is not None:
                    yield f"{module} uses {whose}.{node.attr} (line {node.lineno})"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
