"""Which versions of Understudy work together: those whose protocol numbers differ by one at most.

`PROTOCOL` grows when messages get a meaning that an older version would miss. What is only added, a field or a kind of
message, is ignored by who does not know it. So coordinators and hosts can be upgraded one by one, in any order.
"""

import importlib.metadata

from understudy.errors import WireError

PROTOCOL = 1


def _own_version() -> str:
    try:
        return importlib.metadata.version("understudy")
    except importlib.metadata.PackageNotFoundError:  # it runs from a folder of sources
        return "unknown"


VERSION = _own_version()


def check(who: str, protocol: int, version: str) -> None:
    """Raises `WireError` if we cannot work with it. Protocol 0: it is from before there were numbers."""
    if protocol == 0 or abs(protocol - PROTOCOL) > 1:
        older = "it" if protocol < PROTOCOL else "this side"
        raise WireError(
            f"{who} is version {version or 'unknown'} (protocol {protocol}), this side is version {VERSION} "
            f"(protocol {PROTOCOL}): only neighbouring protocols work together; upgrade {older} first",
            kind="version",
        )
