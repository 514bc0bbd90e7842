"""How adapters get between a framework and its own functions: an attribute is replaced by a wrapper around it.

What an adapter needs is named in full, so that a version without it is refused before anything is trained.
"""

import functools
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


def call(function: Callable[..., Any], *args: Any) -> Any:
    """What `around` wants of a wrapper that changes nothing."""
    return function(*args)


def _nothing(*_: Any, **__: Any) -> None:
    pass
