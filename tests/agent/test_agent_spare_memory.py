"""How much memory a warm spare is asked to keep ready."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from understudy.agent.members import Worker
from understudy.agent.spare_memory import SpareMemory
from understudy.detection.progress import Place, ProgressReader, ProgressWriter
from understudy.foundation.clock import SetClock
from understudy.foundation.ids import MemberId


def _worker(folder: Path, name: str, place: Place, step: int, *, warm: bool, pid: int) -> Worker:
    path = str(folder / name)
    reader = ProgressReader(path)
    ProgressWriter(path).show(1, step, place)
    process = cast(Any, SimpleNamespace(pid=pid))
    return Worker(MemberId(name), reader, (), process=process, warm=warm)


def test_a_spare_is_asked_once_and_only_when_ranks_train(tmp_path: Path) -> None:
    clock = SetClock(10.0)
    memory = SpareMemory(clock)
    spare = _worker(tmp_path, "m-9", Place.PARKED, -1, warm=True, pid=1 << 30)  # no such process: it holds nothing
    starting = _worker(tmp_path, "m-0", Place.SETUP, -1, warm=False, pid=os.getpid())
    assert list(memory.wishes({spare.member: spare, starting.member: starting})) == []
    clock.advance_to(20.0)
    training = _worker(tmp_path, "m-1", Place.IN_STEP, 7, warm=False, pid=os.getpid())
    workers = {spare.member: spare, training.member: training}
    ((member, wanted),) = memory.wishes(workers)
    assert member == "m-9"
    assert wanted > 1_000_000
    clock.advance_to(30.0)
    assert list(memory.wishes(workers)) == []


def test_it_looks_at_most_once_a_second(tmp_path: Path) -> None:
    clock = SetClock(10.0)
    memory = SpareMemory(clock)
    assert list(memory.wishes({})) == []
    spare = _worker(tmp_path, "m-9", Place.PARKED, -1, warm=True, pid=1 << 30)
    training = _worker(tmp_path, "m-1", Place.IN_STEP, 7, warm=False, pid=os.getpid())
    clock.advance_to(10.5)
    assert list(memory.wishes({spare.member: spare, training.member: training})) == []
