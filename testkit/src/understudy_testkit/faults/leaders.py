"""Leaders of state stores in real processes that write all the time, and are killed and stopped meanwhile.

Each one takes up the count where its predecessor left it and records it, one higher each time. So what a store must
never do shows in the numbers: a write of an old term that was accepted makes a count twice, and a write that was lost
is missing from what the next leader reads. A careful leader knows by its clock that its term is over; the clocks of
half of them stand still while they lead, so that nothing but the store can refuse them.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.coordinator.etcd import EtcdStateStore
from understudy.coordinator.folder import FolderStateStore, folder_of, folder_of_job
from understudy.coordinator.state_store import StateStore
from understudy.errors import Deposed
from understudy.files.numbered import NumberedFiles
from understudy.foundation.clock import SystemClock
from understudy.foundation.parenthood import die_with
from understudy_testkit.faults.assertions import NotProven

_FORK = multiprocessing.get_context("fork")
_BETWEEN_WRITES = 0.02  # seconds at most
_UNTIL_STRUCK = 0.5  # seconds at most that a leader is left alone
_SHORT_STOP = 5.0  # seconds at most: it may lose the lead or not
_SUCCESSION_LIMIT = 180.0  # seconds: a machine may be very busy
_LOOK_EVERY = 0.05


class StandingClock(SystemClock):
    """Stands still on demand."""

    stands_at: float | None = None

    def now(self) -> float:
        return super().now() if self.stands_at is None else self.stands_at


class CarelessFiles(NumberedFiles):
    """A planted bug: a number that is taken is taken again."""

    def append(self, number: int, content: bytes) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(number).write_bytes(content)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRole:
    """What one process is told. `careful`: it believes its clock."""

    address: str
    job: str
    name: str
    told: Path
    careful: bool
    broken: bool = False


def _open(role: LeaderRole, clock: StandingClock) -> StateStore:
    if not role.address.startswith("folder:"):
        return EtcdStateStore(role.address, role.job, clock=clock)
    state_store = FolderStateStore(folder_of_job(folder_of(role.address), role.job), clock=clock)
    if role.broken:
        state_store._log._files = CarelessFiles(state_store._log._files.folder)
    return state_store


async def _lead_and_write(role: LeaderRole) -> None:
    clock, chance = StandingClock(), random.Random()
    state_store = _open(role, clock)
    output = os.open(role.told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(what: str, term: int, count: int, began: float = 0.0) -> None:
        line = {"what": what, "term": term, "count": count, "began": began, "at": time.monotonic()}
        os.write(output, json.dumps(line).encode() + b"\n")

    while True:
        clock.stands_at = None
        term = await state_store.lead(role.name)
        if not role.careful:
            clock.stands_at = clock.now()
        count = int(await state_store.read() or b"0")
        tell("leads", term, count)
        while state_store.leads():
            count, began = count + 1, time.monotonic()
            try:
                await state_store.record(b"%d" % count)
            except Deposed:
                tell("refused", term, count, began)
                break
            tell("written", term, count, began)
            await asyncio.sleep(chance.uniform(0.0, _BETWEEN_WRITES))
        tell("deposed", term, count)


def _main(role: LeaderRole, parent: int) -> None:
    die_with(parent)
    os.setpgid(0, 0)
    asyncio.run(_lead_and_write(role))


@dataclass(slots=True)
class _Process:
    role: LeaderRole
    process: Any
    lines: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    def hear(self) -> list[dict[str, Any]]:
        """What it has told since the last time."""
        if not self.role.told.exists():
            return []
        with open(self.role.told, "rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        news = [json.loads(line) for line in whole[0].splitlines()]
        self.lines += news
        return news

    @property
    def term(self) -> int:
        """0: it does not lead, as far as it knows."""
        told = [line for line in self.lines if line["what"] in ("leads", "deposed")]
        return int(told[-1]["term"]) if told and told[-1]["what"] == "leads" else 0


@dataclass(slots=True)
class Play:
    """One job in a store, with three processes that want to lead it. `go` is advanced from outside, so that many plays
    go on at a time."""

    address: str
    job: str
    folder: Path
    strikes: int
    chance: random.Random
    broken: bool = False
    struck: Counter[str] = field(default_factory=Counter)
    processes: list[_Process] = field(default_factory=list)
    _past: list[_Process] = field(default_factory=list)
    _number: int = 0

    def start(self) -> None:
        self._number += 1
        name = f"{self.job}-{self._number}"
        careful = bool(self._number % 2) and not self.broken
        role = LeaderRole(
            address=self.address,
            job=self.job,
            name=name,
            told=self.folder / f"{name}.jsonl",
            careful=careful,
            broken=self.broken,
        )
        process = _FORK.Process(target=_main, args=(role, os.getpid()))
        process.start()
        self.processes.append(_Process(role, process))

    def leader(self) -> _Process | None:
        """The one of the newest term."""
        for one in self.processes:
            one.hear()
        newest = max((one.term for one in self.processes), default=0)
        return next((one for one in self.processes if newest and one.term == newest), None)

    def newest_term(self) -> int:
        everyone = [line["term"] for one in (*self._past, *self.processes) for line in one.lines]
        return max(everyone, default=0)

    def go(self) -> Iterator[None]:
        for _ in range(3):
            self.start()
        leader = yield from self._await_leader(0)
        while sum(self.struck.values()) < self.strikes:
            yield from _pause(self.chance.uniform(0.0, _UNTIL_STRUCK))
            if self.leader() is leader:
                yield from self._strike(leader)
            leader = yield from self._await_leader(0)
        self.close()

    def _strike(self, leader: _Process) -> Iterator[None]:
        kind = self.chance.choice(("killed", "stopped until another led", "stopped for a moment"))
        term, pid = leader.term, leader.process.pid
        if kind == "killed":
            os.kill(pid, signal.SIGKILL)
            leader.process.join(10)
            leader.hear()
            self.processes.remove(leader)
            self._past.append(leader)
            self.start()
            self.struck[kind] += 1
            yield from self._await_leader(term)
            return
        os.kill(pid, signal.SIGSTOP)
        try:
            if kind == "stopped until another led":
                yield from self._await_leader(term)
                yield from _pause(self.chance.uniform(0.0, _UNTIL_STRUCK))
            else:
                yield from _pause(self.chance.uniform(0.0, _SHORT_STOP))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.struck[kind] += 1
        yield from _pause(_UNTIL_STRUCK / 2)  # in which it may do what it must not

    def _await_leader(self, former: int) -> Generator[None, None, _Process]:
        deadline = time.monotonic() + _SUCCESSION_LIMIT
        while True:
            leader = self.leader()
            if leader is not None and leader.term > former:
                return leader
            if time.monotonic() > deadline:
                raise NotProven(f"{self.job}: no leader after term {former} within {_SUCCESSION_LIMIT:g} s")
            yield

    def close(self) -> None:
        for one in self.processes:
            one.process.kill()
            one.process.join(10)
            one.hear()
        self._past += self.processes
        self.processes = []

    # -- what must hold -----------------------------------------------------------------------------------------------

    def told(self, what: str) -> list[dict[str, Any]]:
        return [line for one in self._past for line in one.lines if line["what"] == what]

    def require_order(self) -> None:
        """NotProven if a write of an old term was accepted, or one that was accepted is lost."""
        leads = sorted(self.told("leads"), key=lambda line: int(line["term"]))
        written = sorted(self.told("written"), key=lambda line: int(line["count"]))
        terms = [line["term"] for line in leads]
        if len(set(terms)) < len(terms):
            raise NotProven(f"{self.job}: two leaders had the same term")
        for before, after in itertools.pairwise(written):
            if before["count"] == after["count"]:
                raise NotProven(f"{self.job}: two writes were accepted as number {after['count']}: {before} {after}")
            if before["term"] > after["term"]:
                raise NotProven(
                    f"{self.job}: a write of term {after['term']} followed one of {before['term']}: {after}"
                )
        for line in leads:
            late = [one for one in written if one["term"] < line["term"] and one["began"] > line["at"]]
            if late:
                raise NotProven(f"{self.job}: a write of an old term was accepted: {late[0]} after {line}")
            lost = [one for one in written if one["term"] < line["term"] and one["count"] > line["count"]]
            if lost:
                raise NotProven(f"{self.job}: term {line['term']} has not read what was written before: {lost[-1]}")


def _pause(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


def play(plays: list[Play]) -> None:
    """All at a time, to their end. Raises NotProven."""
    going = [(one, one.go()) for one in plays]
    try:
        while going:
            for one, story in list(going):
                try:
                    next(story)
                except StopIteration:
                    going.remove((one, story))
            time.sleep(_LOOK_EVERY)
    finally:
        for one in plays:
            one.close()
    for one in plays:
        one.require_order()
