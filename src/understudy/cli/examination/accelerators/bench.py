"""The doctor's bench: processes of ranks, a store for them, a folder for each trial. All of it ends with it."""

import contextlib
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.agent.environment import base_environment
from understudy.agent.runtime_dir import runtime_dir
from understudy.cli.examination.accelerators.contract import Disproved
from understudy.cli.examination.accelerators.nursery import Nursery
from understudy.cli.examination.accelerators.rank import WITHIN, Rank, RankFailed

DEFAULT_GROUP = "world"
_BIRTH, _FIRST_USE = 60.0, 120.0  # seconds until a process reports, and until it has its device


@dataclass
class Workbench:
    """See `contract.Bench`. `top`: its folder. Use it as a context."""

    device: str
    family: str
    emulated: bool
    quick: bool
    environment: Mapping[str, str]
    top: Path
    devices: int = 0
    trial: str = "none"
    seen: dict[str, Any] = field(default_factory=dict)  # what was found when it was opened
    _ranks: list[Rank] = field(default_factory=list)
    _nursery: Nursery | None = None
    _listener: socket.socket | None = None
    _store_port: int | None = None
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    # -- for trials ---------------------------------------------------------------------------------------------------

    def folder(self) -> Path:
        folder = self.top / self.trial
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def tell(self, text: str) -> None:
        print(f"      {text}", flush=True)

    @property
    def unfit(self) -> str | None:
        """Why the fork server cannot be used."""
        assert self._nursery is not None
        return self._nursery.unfit()

    def bear(self, name: str, variables: Mapping[str, str] | None = None) -> Rank:
        """A process that uses nothing yet."""
        assert self._nursery is not None and self._listener is not None
        given = {"NCCL_DEBUG": "INFO", **self.environment} | dict(variables or {})
        pid = self._nursery.bear(self.folder() / f"{name.replace(' ', '-')}.txt", given)
        self._listener.settimeout(_BIRTH)
        try:
            line, _ = self._listener.accept()
            line.settimeout(_BIRTH)
            assert int(line.recv(32)) == pid
        except (OSError, ValueError, AssertionError) as error:
            raise RankFailed(f"{name} (process {pid}) did not report: {error}") from None
        rank = Rank(name, pid, line)
        self._ranks.append(rank)
        return rank

    def rank(self, name: str, place: int, variables: Mapping[str, str] | None = None) -> Rank:
        """A process with the device at this place."""
        born = self.bear(name, variables)
        born.do("take", within=_FIRST_USE, place=place % max(1, self.devices), **self.seams())
        return born

    def seams(self) -> dict[str, Any]:
        return {"device": self.device, "family": self.family, "emulated": self.emulated}

    def store_port(self) -> int:
        if self._store_port is None:
            self._store_port = int(self.bear("store").do("host_store")["port"])
        return self._store_port

    def end_ranks(self) -> None:
        """Those of a trial. The store stays."""
        for rank in [rank for rank in self._ranks if rank.name != "store"]:
            self._ranks.remove(rank)
            rank.kill()

    # -- its life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Workbench":
        path = self._closing.enter_context(runtime_dir()) / "bench"  # that of a temporary folder may be too long
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._nursery = Nursery(path, self.environment, self.top / "fork-server.txt")
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            with contextlib.suppress(RankFailed, OSError):
                rank.kill()
        if self._nursery is not None:
            self._nursery.close()
        if self._listener is not None:
            self._listener.close()
        self._closing.close()


@contextlib.contextmanager
def opened(
    device: str, family: str, emulated: bool, quick: bool, environment: Mapping[str, str]
) -> Iterator[Workbench]:
    """Its folder goes when it is closed: what is to be kept goes into the archive before."""
    top = Path(tempfile.mkdtemp(prefix="understudy-acceptance-"))
    given = base_environment(environment, world_size=2)
    try:
        with Workbench(device, family, emulated, quick, given, top) as bench:
            yield bench
    finally:
        shutil.rmtree(top, ignore_errors=True)


def words(bench: Workbench) -> int:
    """Of four bytes, for a sum that takes some milliseconds."""
    return 1 << 10 if bench.emulated else 1 << 26


class Pair:
    """Two ranks and what they are connected by: rank 0 survives, rank 1 is struck. `groups`: of both."""

    def __init__(
        self,
        bench: Workbench,
        groups: Sequence[str] = (DEFAULT_GROUP,),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._bench, self.groups, self._variables = bench, list(groups), variables
        self.generation, self._births = 0, 0
        self.survivor = self._new(0)
        self.victim = self._new(1)

    def _new(self, place: int) -> Rank:
        self._births += 1
        name = f"rank {place}" if self._births <= 2 else f"rank {place} anew {self._births - 2}"
        rank = self._bench.rank(name, place, self._variables)
        rank.do("make", groups=self.groups, rank=place, size=2, port=self._bench.store_port())
        return rank

    def replace(self) -> None:
        """Another process holds the slot of the one that was struck."""
        self.victim.kill()
        self.victim = self._new(1)

    def connect(self) -> float:
        """Seconds that the survivor needs to form all groups."""
        self.generation += 1
        unique = secrets.randbits(40)
        shown = [rank.do("handles") for rank in (self.survivor, self.victim)]
        peers = {group: [handles[group] for handles in shown] for group in self.groups}
        asked = [(rank, rank.begin("connect", peers=peers, unique=unique)) for rank in (self.survivor, self.victim)]
        took = [rank.end(question, 2 * WITHIN).took for rank, question in asked]
        return took[0]

    def both(self, verb: str, **arguments: Any) -> list[Mapping[str, Any]]:
        asked = [(rank, rank.begin(verb, **arguments)) for rank in (self.survivor, self.victim)]
        return [rank.end(question).content for rank, question in asked]

    def require_sums(self, count: int, words: int) -> None:
        """What two ranks sum is right."""
        self.both("all_reduce", groups=self.groups, count=count, words=words)
        for came in self.both("sums"):
            if came["sums"] != {group: {"3": count} for group in self.groups}:
                raise Disproved(f"sums of 1 and 2 are {came['sums']} instead of 3")


@contextlib.contextmanager
def pair(
    bench: Workbench, groups: Sequence[str] = (DEFAULT_GROUP,), variables: Mapping[str, str] | None = None
) -> Iterator[Pair]:
    try:
        yield Pair(bench, groups, variables)
    finally:
        bench.end_ranks()
