"""Which packages are installed, what is missing without the others, and whether a run or another host had others.

Reads the packages' metadata only; none of them is loaded.
"""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from understudy.cli.examination.finding import Finding
from understudy.foundation.printable import printable

_TORCH = (2, 15)
_SAME_EVERYWHERE = ("python", "understudy", "torch")
_LONGEST = 40  # letters of a version that another host tells


@dataclass(frozen=True, slots=True)
class Extra:
    """Packages that one feature needs, with the oldest versions that do; `name` is for pip."""

    name: str
    feature: str
    packages: Mapping[str, str]


EXTRAS = (
    Extra(
        "hosts",
        "many hosts (`understudy coordinator`, --coordinator)",
        {"grpcio": "1.66", "aetcd": "1.0", "cryptography": "42"},
    ),
    Extra(
        "api",
        "the HTTP API (--http: status, actions, alerts, metrics)",
        {"fastapi": "0.115", "uvicorn": "0.34", "prometheus-client": "0.20"},
    ),
)


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions_here() -> dict[str, str]:
    """Under the names that run.json has for them."""
    found = {"python": platform.python_version()}
    return found | {name: installed(name) or "not installed" for name in ("understudy", "torch")}


def packages() -> Iterator[Finding]:
    yield Finding(f"understudy {installed('understudy') or '(not installed, run from its source)'}", good=True)
    yield _torch()
    for extra in EXTRAS:
        yield _extra(extra)


def _torch() -> Finding:
    version = installed("torch")
    if version is None:
        advice = "pip install 'understudy[training]'; only a host without ranks and spares needs no torch"
        return Finding("torch is not installed", good=False, wrong=True, advice=advice)
    right = _numbers(version)[:2] >= _TORCH
    return Finding(
        f"torch {version}", good=right, wrong=not right, advice="groups can be formed again in place from 2.15 on"
    )


def _extra(extra: Extra) -> Finding:
    found = {package: installed(package) for package in extra.packages}
    missing = [package for package, version in found.items() if version is None]
    told = ", ".join(f"{package} {version}" for package, version in found.items() if version is not None)
    remedy = f"pip install 'understudy[{extra.name}]'"
    if missing:
        what = f"without {', '.join(missing)}: not usable here is {extra.feature}"
        return Finding(what, good=False, advice=f"if you want it: {remedy}")
    old = [f"{name} {extra.packages[name]}" for name, version in found.items() if _older(version, extra.packages[name])]
    return Finding(told, good=not old, advice=f"{extra.feature} wants at least {', '.join(old)}: {remedy}")


def _older(version: str | None, least: str) -> bool:
    return version is not None and _numbers(version) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """`2.15.0+cu128` is (2, 15, 0); whatever is no number ends it."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def compared(whose: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Finding:
    """`theirs`: of a run or of another host. Spares compute the same bits only with the same torch."""
    known = [name for name in _SAME_EVERYWHERE if name in theirs]
    different = [
        f"{name} {printable(theirs[name][:_LONGEST])} ({ours.get(name)} here)"
        for name in known
        if theirs[name] != ours.get(name)
    ]
    if not known:
        return Finding(f"{whose} does not say which versions it has", good=False)
    if different:
        return Finding(
            f"{whose} has {', '.join(different)}",
            good=False,
            advice="all hosts of a job need the same: a replacement with another torch may compute other bits",
        )
    return Finding(f"{whose} has the same {', '.join(known)}", good=True)
