"""Writes the pages of `docs/reference/` from the code: `python docs/tools/reference.py`.

Each page has one source: the argparse parsers, the structs of the policy file, the description of the HTTP API, the
declared metrics, the codes of reasons, and the docstrings of the public names. A test
(`tests/house/test_reference.py`) compares the pages with what this would write, so that they cannot drift. Does not
know: anything that a person has written about them.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

import understudy
from understudy.api.app import Settings, make_api
from understudy.api.audit import Audit
from understudy.api.feed import Feed
from understudy.api.job import JobDoor
from understudy.api.metric_names import METRICS, NAMESPACE
from understudy.api.naming import LABEL
from understudy.cli.main import build_parser
from understudy.cli.policy_file import PolicyFile
from understudy.protocol.advice import ADVICE
from understudy.protocol.reasons import Code
from understudy.protocol.rungs import RungLimits
from understudy.protocol.sentences import TEXTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
_MADE = "<!-- Made from the code by `python docs/tools/reference.py`. Change the code, not this page. -->\n\n"
_STATUSES = ("differs", "no effect", "refused")


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    made: Mapping[str, Callable[[], Iterator[str]]] = {
        "command-line.md": _command_line,
        "policy.md": _policy,
        "http-api.md": _http_api,
        "metrics.md": _metrics,
        "reasons.md": _reasons,
        "python-api.md": _python_api,
    }
    return {name: _MADE + "\n".join(lines()).rstrip() + "\n" for name, lines in made.items()}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _header(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "---|" * len(cells)]


def _linked(text: str) -> str:
    """Names of documents become links, flags and names of Python's become code."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]+|__\w+__)", r"`\1`", text.replace("<", "&lt;"))
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](../\1.md)", text)


# -- the command line -------------------------------------------------------------------------------------------------


def _command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield "[Flags](../flags.md) tells what workers see. Of the flags of torchrun, one that is *supported* does what it"
    yield "does in torchrun; one that *differs* works in the way described; one that has *no effect* is accepted, so"
    yield "that a command line need not be changed (a value other than the default is mentioned at the start); one that"
    yield "is *refused* is an error which names it (exit code 2).\n"
    for name in commands():
        parser = parser_of(name)
        yield f"## `understudy {name}`\n"
        yield f"{_sentence(_linked(str(parser.description)))}\n"
        yield from _of_parser(parser)


def commands() -> list[str]:
    return list(_subcommands(build_parser()).choices)


def parser_of(command: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _subcommands(build_parser(command)).choices[command]
    return parser


def _subcommands(parser: argparse.ArgumentParser) -> Any:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    shown = [action for action in parser._actions if action not in nested and "--help" not in action.option_strings]
    untitled: list[argparse.Action] = []
    titled = list[tuple["argparse._ArgumentGroup", list[argparse.Action]]]()
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action in shown]
        if group.title in ("positional arguments", "options"):
            untitled += actions
        elif actions:
            titled.append((group, actions))
    if untitled:
        yield from _table(untitled)
    for group, actions in titled:
        yield f"### {_capital(str(group.title))}\n"
        if group.description:
            yield f"{_sentence(_linked(group.description))}\n"
        yield from _torchrun_table(actions) if group.title == "flags of torchrun" else _table(actions)
    for action in nested:
        for inner in action.choices.values():
            yield f"### `{inner.prog}`\n"
            yield from _of_parser(inner)


def _table(actions: list[argparse.Action]) -> Iterator[str]:
    yield from _header("argument", "what it does")
    for action in actions:
        yield _row(_spelling(action), _help(action))
    yield ""


def _torchrun_table(actions: list[argparse.Action]) -> Iterator[str]:
    yield from _header("flag", "", "what it does here")
    for action in actions:
        text = _help(action)
        status = next((word for word in _STATUSES if text.startswith(f"{word}: ")), "")
        yield _row(_spelling(action), status or "supported", text.removeprefix(f"{status}: "))
    yield ""


def _help(action: argparse.Action) -> str:
    return _linked(str(action.help or "") % vars(action))


def _spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        shown = action.metavar if isinstance(action.metavar, str) else action.dest
        return f"`{shown}`" + (" ..." if action.nargs in ("+", "*", argparse.REMAINDER) else "")
    flags = [flag for flag in action.option_strings if "_" not in flag]
    values = "" if action.choices is None else " " + " ".join(f"`{choice}`" for choice in action.choices)
    return ", ".join(f"`{flag}`" for flag in flags) + values


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    return _capital(text) + ("" if text.endswith((".", ":")) else ".")


# -- the policy file --------------------------------------------------------------------------------------------------


def _policy() -> Iterator[str]:
    yield "# Policy file\n"
    yield "Every key of `--policy FILE`, and of `[policy]` in a configuration file. [Policy](../policy.md) has more.\n"
    usual = asdict(RungLimits())
    for table in _tables(PolicyFile, ""):
        yield f"## `[{table.path}]`\n"
        if table.text:
            yield f"{_sentence(table.text)}\n"
        yield from _header("key", "type", "default", "what it is")
        for field in table.keys:
            default = field.default
            if field.name == "budget":
                limit = usual[table.path.rpartition(".")[2].replace("-", "_")]
                default = "as often as it helps" if limit is None else limit
            yield _row(f"`{field.name}`", field.type, _toml(default), _linked(field.text))
        yield ""


class _Key(SimpleNamespace):
    name: str
    type: str
    default: Any
    text: str


class _PolicyTable(SimpleNamespace):
    path: str
    text: str
    keys: list[_Key]


def _tables(struct: Any, path: str, text: str = "") -> Iterator[_PolicyTable]:
    flags = {action.dest: str(action.help) for action in parser_of("run")._actions}
    keys, inner = [], []
    for field in msgspec.structs.fields(struct):
        kind = msgspec.inspect.type_info(field.type)
        told = str((kind.extra_json_schema or {})["description"]) if isinstance(kind, msgspec.inspect.Metadata) else ""
        bare = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
        if isinstance(bare, msgspec.inspect.StructType):
            inner.append((bare.cls, f"{path}.{field.encode_name}".lstrip("."), told))
            continue
        flag = flags.get(field.name, "")
        text_of_key = told or f"--{field.encode_name}: {flag.rpartition(' (default')[0]}"
        keys.append(_Key(name=field.encode_name, type=_type_of(bare), default=field.default, text=text_of_key))
    if keys:
        yield _PolicyTable(path=path, text=text, keys=keys)
    for cls, place, told in inner:
        yield from _tables(cls, place, told)


def _type_of(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.Metadata():
            return _type_of(kind.type)
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return f"whole number, {kind.ge} or more"
        case msgspec.inspect.FloatType():
            return f"number, more than {kind.gt:g}" if kind.gt is not None else f"number, {kind.ge or 0:g} or more"
        case msgspec.inspect.UnionType():
            return " or ".join(_type_of(t) for t in kind.types if not isinstance(t, msgspec.inspect.NoneType))
    raise TypeError(f"the reference page has no words for {kind}")


def _toml(value: Any) -> str:
    return f"`{str(value).lower()}`" if isinstance(value, bool | int | float) else str(value)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def _http_api() -> Iterator[str]:
    described = _openapi()
    yield "# HTTP API\n"
    yield "What may be asked, by whom, and what it leads to is in [HTTP API, webhooks, metrics](../api.md)."
    yield "A running job publishes this description as `/v1/openapi.json`.\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n"
            if operation.get("description"):
                yield f"{_sentence(operation['description'])}\n"
            yield from _of_operation(operation)
    yield "## Bodies and answers\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        if name not in ("HTTPValidationError", "ValidationError"):
            yield from _of_schema(name, schema)


def _openapi() -> dict[str, Any]:
    """Of an API without a job: its description does not depend on one."""
    door = cast(JobDoor, SimpleNamespace(name="job", feed=Feed(), inventories=dict))
    described: dict[str, Any] = make_api(door, cast(Audit, None), Settings()).described.openapi()
    return described


def _of_operation(operation: Mapping[str, Any]) -> Iterator[str]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    answer = operation["responses"].get("200", {}).get("content", {})
    if body is not None:
        yield f"Body: {_schema(body)}.\n"
    kinds = [
        _schema(content["schema"]) if kind == "application/json" else f"`{kind}`" for kind, content in answer.items()
    ]
    yield f"Answer: {', '.join(dict.fromkeys(kinds))}.\n"
    parameters = operation.get("parameters", ())
    if parameters:
        yield from _header("parameter", "in", "type", "what it is")
        for one in parameters:
            text = one.get("description", "")
            yield _row(f"`{one['name']}`", one["in"], _schema(one["schema"]), text)
        yield ""


def _of_schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield f"{_sentence(' '.join(schema['description'].split()))}\n"
    yield from _header("field", "type", "needed", "what it is")
    needed = schema.get("required", ())
    for field, kind in schema["properties"].items():
        yield _row(f"`{field}`", _schema(kind), "yes" if field in needed else "", kind.get("description", ""))
    yield ""


_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters or fewer",
    "minItems": "{} or more",
    "maxItems": "{} or fewer",
}


def _schema(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_schema(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "anything"))
    if kind == "array" and "items" in schema:
        kind = f"array of {_schema(schema['items'])}"
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    return kind + (f" ({', '.join(limits)})" if limits else "")


# -- metrics ----------------------------------------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    yield "# Metrics\n"
    yield f"Every metric of `/metrics` also has the label `{LABEL}`. [Here](../api.md#metrics) is how to scrape them.\n"
    yield from _header("metric", "kind", "labels", "what it is")
    for name, told in METRICS.items():
        full = f"{NAMESPACE}_{name}" + ("_total" if told.kind == "counter" else "")
        yield _row(f"`{full}`", told.kind, ", ".join(f"`{label}`" for label in told.labels), _linked(told.text))


# -- reasons ----------------------------------------------------------------------------------------------------------


def _reasons() -> Iterator[str]:
    yield "# Reasons\n"
    yield "Every decision, refusal and stop has a `code` and `fields`, in `ledger/decisions.jsonl` and in the answers"
    yield "of the [HTTP API](http-api.md), beside a sentence that is made of them. Programs go by the code: sentences"
    yield "may change. A reason can be a field of another one, with a code and fields of its own. Words in italics are"
    yield "fields.\n"
    remarks = dict(re.findall(r'^    ([A-Z_]+) = "[a-z_]+"  # (.*)$', inspect.getsource(Code), re.MULTILINE))
    yield from _header("code", "what it says", "what to do")
    for code, text in TEXTS.items():
        remark = f" ({remarks[Code(code).name]})" if Code(code).name in remarks else ""
        yield _row(f"`{code}`", _linked(_readable(text)) + remark, _linked(ADVICE.get(code, "")))


def _readable(text: str) -> str:
    """Without the signs that say how a field is shown (`sentences`)."""

    def shown(field: re.Match[str]) -> str:
        name, how = f"*{field[1]}*", field[2] or ""
        if how.startswith("?"):
            return how[1:].partition("!")[0].replace("#", name)
        return how.partition("|")[2].replace("#", name) if "|" in how else name

    return re.sub(r"\{(\w+)(?::([^}]*))?\}", shown, text).replace(" // ", "; ")


# -- the Python API ---------------------------------------------------------------------------------------------------


def _python_api() -> Iterator[str]:
    yield "# Python API\n"
    yield "The public names of `understudy`, as their docstrings tell it. The rules for a script are in"
    yield "[what you write](../training-api.md).\n"
    for name, module in sorted(_homes().items()):
        node = next(one for one in module.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name)
        if isinstance(node, ast.FunctionDef):
            yield from _of_function(node, "understudy.", "##")
        else:
            yield from _of_class(node)


def _homes() -> dict[str, ast.Module]:
    """The module of each public name, read without loading torch."""
    package = Path(str(understudy.__file__)).parent
    found: dict[str, ast.Module] = {}
    for node in ast.walk(ast.parse((package / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("understudy."):
            path = package.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
            found |= {one.name: ast.parse(path.read_text()) for one in node.names if one.name in understudy.__all__}
    return found


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    yield f"## `understudy.{node.name}`\n"
    yield f"{_docstring(node)}\n"
    for one in node.body:
        if not isinstance(one, ast.FunctionDef):
            continue
        if one.name == "__init__" and node.name == "Batches":  # the others are made by understudy, not by a script
            yield f"```python\n{_signature(one, node.name)}\n```\n"
        elif not one.name.startswith("_"):
            yield from _of_function(one, f"{node.name}.", "###")


def _of_function(node: ast.FunctionDef, owner: str, level: str) -> Iterator[str]:
    yield f"{level} `{owner}{node.name}`\n"
    if any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list):
        assert node.returns is not None
        yield f"`{ast.unparse(node.returns)}`, read only.\n"
    else:
        yield f"```python\n{_signature(node, node.name)}\n```\n"
    if ast.get_docstring(node):
        yield f"{_docstring(node)}\n"


def _signature(node: ast.FunctionDef, name: str) -> str:
    positional = [arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg != "self"]
    parts = [ast.unparse(arg) for arg in positional]
    if node.args.kwonlyargs:
        parts.append("*")
    for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        parts.append(ast.unparse(arg) + ("" if default is None else f" = {ast.unparse(default)}"))
    if node.args.kwarg is not None:
        parts.append("**" + ast.unparse(node.args.kwarg))
    returns = "" if node.returns is None or name != node.name else f" -> {ast.unparse(node.returns)}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= 100:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{inner}){returns}"


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](../\1.md)", ast.get_docstring(node) or "")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"wrote {(FOLDER / name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
