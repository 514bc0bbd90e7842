"""The acceptance as a whole: which parts there are, which are wanted, and the order of things."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy.cli.examination.accelerators import (
    archive,
    box,
    brought,
    carrying_out,
    one_device,
    teeth,
    two_processes,
)
from understudy.cli.examination.accelerators.bench import Workbench, opened
from understudy.cli.examination.accelerators.contract import Part, Result
from understudy.cli.examination.accelerators.rank import RankFailed
from understudy.cli.examination.finding import Finding
from understudy.errors import SettingsError

PARTS = (
    box.PART,
    one_device.PART,
    two_processes.PART,
    teeth.PART,
    Part(letter="E", title="end to end", trials=brought.trials_of("end-to-end")),
    Part(letter="F", title="cost", trials=brought.trials_of("cost")),
)
FAMILIES = {"cuda": "nccl"}
"""Of communicators, by the device that they are for. A plugin's own are called as its device is."""
_LOOKING = 180.0
_EMULATED = 2  # devices, where none are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`only`: letters of parts, none for all. `devices`: use no more than so many; 0: as many as there are."""

    device: str
    only: tuple[str, ...] = ()
    devices: int = 0
    quick: bool = False
    archive: Path | None = None

    def parts(self) -> list[Part]:
        return [part for part in PARTS if not self.only or part.letter in self.only]


def parse_parts(text: str) -> tuple[str, ...]:
    """`A,C`. SettingsError for one that there is not."""
    letters = tuple(letter.strip().upper() for letter in text.split(",") if letter.strip())
    known = [part.letter for part in PARTS]
    unknown = [letter for letter in letters if letter not in known]
    if unknown or not letters:
        raise SettingsError(f"--accelerators-only {text}: there are the parts {', '.join(known)}")
    return letters


def require(wanted: Wanted) -> None:
    """Refuses what cannot be used before anything is tried."""
    if wanted.archive is not None:
        archive.require_place(wanted.archive)
    if wanted.device not in FAMILIES and wanted.device not in brought.emulations():
        there = ", ".join(sorted({*FAMILIES, *brought.emulations()}))
        raise SettingsError(
            f"--device {wanted.device}: there is {there}; emulated ones come with another package: {brought.INSTALL}"
        )


class Acceptance:
    """One, from its beginning to its archive."""

    def __init__(self, wanted: Wanted, environment: Mapping[str, str]) -> None:
        self._wanted, self._environment = wanted, environment
        self._began = time.time()
        self._results: list[Result] = []

    @property
    def complete(self) -> bool:
        """Was all of it shown?"""
        return bool(self._results) and carrying_out.all_shown(self._results)

    def titles(self) -> Iterator[tuple[str, Iterator[Finding]]]:
        """Each with its findings; what is under a title is tried while it is read."""
        wanted = self._wanted
        family = FAMILIES.get(wanted.device, wanted.device)
        emulated = wanted.device not in FAMILIES
        with opened(wanted.device, family, emulated, wanted.quick, self._environment) as bench:
            yield "accelerators", self._look_around(bench)
            if not bench.seen:
                return
            for part in wanted.parts():
                yield f"{part.letter}. {part.title}", self._carried_out(part, bench)
            yield "what came of it", self._end(bench)

    def _look_around(self, bench: Workbench) -> Iterator[Finding]:
        bench.trial = "opening"
        bench.tell("loading torch")
        try:
            bench.seen = dict(bench.bear("looking").do("look_around", within=_LOOKING, **bench.seams()))
        except RankFailed as failed:
            yield Finding(str(failed), good=False, wrong=True, advice="can torch be imported here, and understudy run?")
            return
        bench.end_ranks()
        there = int(bench.seen["count"]) if bench.seen["present"] else 0
        if bench.emulated:
            there = self._wanted.devices or _EMULATED
        bench.devices = min(there, self._wanted.devices or there)
        kind = "emulated: nothing here is about a GPU" if bench.emulated else "real"
        yield Finding(f"{bench.devices} of {bench.device} ({kind})", good=bench.devices > 0)

    def _carried_out(self, part: Part, bench: Workbench) -> Iterator[Finding]:
        for result in carrying_out.results_of(part, bench):
            self._results.append(result)
            yield carrying_out.finding(result)

    def _end(self, bench: Workbench) -> Iterator[Finding]:
        if self._wanted.archive is not None:
            yield archive.write(self._wanted.archive, bench, self._results, self._began)
        yield Finding(carrying_out.summary(self._results, bench.emulated), good=self.complete)
