"""How adapters get between a framework and its own functions: an attribute is replaced by a wrapper around it.

What an adapter needs is named in full, so that a version without it is refused before anything is trained.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from understudy.errors import UsageError

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap(package: str, owner: Any, **wrappers: Wrapper) -> None:
    """Replace attributes of `owner`, a part of `package`. UsageError when one of them is gone."""
    for name, wrapper in wrappers.items():
        function = getattr(owner, name, None)
        if not callable(function):
            raise UsageError(
                f"{package} {version(package)} has no {type(owner).__name__}.{name}, which Understudy's adapter wraps: "
                f"this version is not supported. docs/frameworks has the versions that are"
            )
        setattr(owner, name, wrapper(function))
