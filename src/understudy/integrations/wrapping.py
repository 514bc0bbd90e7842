"""How adapters get between a framework and its own functions: an attribute is replaced by a wrapper around it.

What an adapter needs is named in full, so that a version without it is refused before anything is trained.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from understudy.errors import UsageError


def replace(package: str, owner: Any, **by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Attributes of `owner`, a part of `package`: by what is made of each. UsageError when one of them is gone."""
    for name, make in by.items():
        function = getattr(owner, name, None)
        if not callable(function):
            raise UsageError(
                f"{package} {version(package)} has no {type(owner).__name__}.{name}, which Understudy's adapter wraps: "
                "this version is not supported. docs/frameworks says which are"
            )
        setattr(owner, name, make(function))


def around(package: str, owner: Any, **by: Callable[..., Any]) -> None:
    """The same, by functions that are given the former attribute, and then what it was called with."""
    replace(package, owner, **{name: functools.partial(_partly, wrapper) for name, wrapper in by.items()})


def found_in(package: str, module: str, name: str) -> Any:
    """A name in a module of `package`. UsageError when it is gone."""
    with contextlib.suppress(ImportError, AttributeError):
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    raise UsageError(
        f"{package} {version(package)} has no {module}.{name}, which Understudy's adapter uses: this version is not "
        "supported. docs/frameworks says which are"
    )


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """What it returns of a DTensor, such as a norm of sharded gradients, is whole on every rank: a replacement that is
    told of it could not communicate."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result.full_tensor() if hasattr(result, "full_tensor") else result

    return run


def _partly(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(functools.partial(wrapper, function))


def switch_off(package: str, owner: Any, *names: str) -> None:
    """These do nothing any more."""
    replace(package, owner, **dict.fromkeys(names, lambda _: _nothing))


def refuse(framework: str, wrong: dict[str, Any]) -> None:
    """What would not be exact, or could not be led to its place, is said at once: those names whose value is true."""
    if found := [name for name, given in wrong.items() if given]:
        raise UsageError(f"Understudy's adapter of {framework} does not work with {', '.join(found)}")


def call(function: Callable[..., Any], *args: Any) -> Any:
    """What `around` wants of a wrapper that changes nothing."""
    return function(*args)


def _nothing(*_: Any, **__: Any) -> None:
    pass
