"""Which types the product declares with which fields, and where one value is copied into another field by field. Read
from the syntax trees of `sources`."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

Modules = Mapping[str, ast.Module]


def fields_by_type(modules: Modules) -> dict[str, frozenset[str]]:
    """The fields that every dataclass and every struct declares itself, by the full name of the type."""
    return {
        f"{module}.{node.name}": frozenset(_fields(node))
        for module, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _is_record(node)
    }


def _is_record(node: ast.ClassDef) -> bool:
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    is_struct = any(keyword.arg == "frozen" for keyword in node.keywords) or "msgspec.Struct" in map(
        ast.unparse, node.bases
    )
    return "dataclass" in decorators or is_struct


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def alike(modules: Modules, fewest: int) -> set[tuple[str, str]]:
    """Pairs of types that declare the same fields, at least so many."""
    known = {name: fields for name, fields in fields_by_type(modules).items() if len(fields) >= fewest}
    return {(one, other) for one, other in combinations(sorted(known), 2) if known[one] == known[other]}


def overlaps(modules: Modules, others: Modules, most: int) -> set[tuple[str, str]]:
    """Pairs of a type of `modules` and a type of `others` that have more field names than that in common."""
    known = fields_by_type(others)
    return {
        (one, other)
        for one, fields in fields_by_type(modules).items()
        for other, its in known.items()
        if len(fields & its) > most
    }


def copies_field_by_field(modules: Modules, fewest: int) -> set[tuple[str, str]]:
    """Calls such as `A(x=b.x, y=Y(b.y), z=b.z)`, where at least so many arguments are fields of one value by the same
    name: the module, and what is called."""
    return {
        (module, ast.unparse(call.func))
        for module, tree in modules.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _most_from_one_value(call) >= fewest
    }


def _most_from_one_value(call: ast.Call) -> int:
    taken = Counter(
        ast.unparse(part.value)
        for argument in call.keywords
        for part in ast.walk(argument.value)
        if isinstance(part, ast.Attribute) and part.attr == argument.arg
    )
    return max(taken.values(), default=0)
