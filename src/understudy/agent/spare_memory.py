"""How much memory an idle spare should have ready: as much as a rank of this job holds, within reason."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from understudy.agent.members import Worker
from understudy.detection.progress import Place
from understudy.foundation.clock import Clock
from understudy.foundation.ids import MemberId

_LOOK_EVERY = 1.0
_SHARE_OF_FREE_MEMORY = 0.25  # all spares together never ask for more than this part of what the host has left
_STEPS_BEFORE_MEASURING = 2  # by then a rank has allocated what it will hold


class SpareMemory:
    """Looks now and then; a spare is asked once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_look = 0.0
        self._asked: set[MemberId] = set()

    def wishes(self, workers: Mapping[MemberId, Worker]) -> Iterator[tuple[MemberId, int]]:
        """(spare, bytes) for each warm spare that has not been asked yet."""
        now = self._clock.now()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY
        new = [worker for worker in workers.values() if worker.warm and worker.member not in self._asked]
        spares = [worker for worker in new if worker.page.look().place is Place.PARKED]
        if not spares:
            return
        held = max((_own_memory(worker) for worker in workers.values() if _trains(worker)), default=0)
        limit = int(_SHARE_OF_FREE_MEMORY * _free_memory() / len(spares))
        for spare in spares:
            missing = min(held - _own_memory(spare), limit)
            if held:
                self._asked.add(spare.member)
            if missing > 0:
                yield spare.member, missing


def _trains(worker: Worker) -> bool:
    page = worker.page.look()
    return page.place in (Place.IN_STEP, Place.BETWEEN_STEPS) and page.step >= _STEPS_BEFORE_MEASURING


def _own_memory(worker: Worker) -> int:
    """Resident bytes that belong to the process alone."""
    if worker.process is None or worker.process.pid is None:
        return 0
    return _kilobytes(Path(f"/proc/{worker.process.pid}/status"), "RssAnon") * 1024


def _free_memory() -> int:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024


def _kilobytes(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0  # the process has just ended
    for line in lines:
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    return 0
