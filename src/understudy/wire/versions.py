"""Which versions of Understudy work together: those whose protocol numbers differ by one at most.

`PROTOCOL` grows when messages get a meaning that an older version would miss, whether agents and coordinators exchange
them or ranks of two hosts. What is only added, a field with a default or a kind of message, is ignored by a version
that does not know it; a new value of an enumeration is not. So coordinators and hosts can be upgraded one by one, in
any order. `claims/version-skew` compares the messages with those of the previous release.
"""

import importlib.metadata
from collections.abc import Mapping

from understudy.errors import WireError

PROTOCOL = 1


def _own_version() -> str:
    try:
        return importlib.metadata.version("understudy")
    except importlib.metadata.PackageNotFoundError:  # it runs from a folder of sources
        return "unknown"


VERSION = _own_version()


def check(own: str, other: str, protocol: int, version: str) -> None:
    """Raises `WireError` if we, `own`, cannot work with `other`. The sentence is read on both sides, so it names both.
    Protocol 0: it is from before there were numbers."""
    if protocol == 0 or abs(protocol - PROTOCOL) > 1:
        older = other if protocol < PROTOCOL else own
        raise WireError(
            f"{other} is version {version or 'unknown'} (protocol {protocol}), {own} is version {VERSION} "
            f"(protocol {PROTOCOL}): only neighbouring protocols work together; upgrade {older} first",
            kind="version",
        )


def check_between(host: str, protocol: int, others: Mapping[str, int]) -> None:
    """The ranks of two hosts speak with each other as well, so every two hosts must be neighbours. `others`: the
    protocols of the hosts that take part. Raises `WireError` if one of them is too far away."""
    for other, its in others.items():
        if abs(protocol - its) > 1:
            older = host if protocol < its else other
            raise WireError(
                f"host {host} has protocol {protocol}, and host {other} of this job has protocol {its}: only "
                f"neighbouring protocols work together; upgrade host {older} first",
                kind="version",
            )
