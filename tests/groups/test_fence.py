"""The promise of every fence: nobody passes before all have arrived, and a lost rank ends the wait."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.disks import fill, small_disk
from torch._C._distributed_c10d import FileStore

from understudy.foundation.ids import Generation, StepNumber
from understudy.groups.fence import Fences, GroupFence, SharedFence

pytestmark = pytest.mark.processes

RANKS, STEPS = 3, 300
_fork = multiprocessing.get_context("fork")


def _meet_often(kind: str, folder: Path, rank: int, steps: Any, wrong: Any) -> None:
    fence: SharedFence | GroupFence
    if kind == "group":
        store = FileStore(str(folder / "store"), RANKS)
        dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
        fence = GroupFence()
    else:
        fence = SharedFence(str(folder), Generation(1), rank, RANKS)
    for step in range(STEPS):
        if step % RANKS == rank:
            time.sleep(0.001)  # each is the last one now and then
        steps[rank] = step
        fence.meet(StepNumber(step), lambda: False)
        if min(steps) < step:
            wrong.value += 1
    os._exit(0)


@pytest.mark.parametrize("kind", ["shared", "group"])
def test_nobody_passes_before_all_have_arrived(kind: str, tmp_path: Path) -> None:
    steps, wrong = _fork.Array("q", RANKS, lock=False), _fork.Value("q", 0)
    processes = [_fork.Process(target=_meet_often, args=(kind, tmp_path, r, steps, wrong)) for r in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * RANKS
    assert wrong.value == 0 and list(steps) == [STEPS - 1] * RANKS


def test_a_rank_that_is_killed_at_the_fence_of_the_others_ends_their_wait(tmp_path: Path) -> None:
    lost = _fork.Event()

    def wait_in_vain(rank: int) -> None:
        try:
            SharedFence(str(tmp_path), Generation(1), rank, RANKS).meet(StepNumber(0), lost.is_set)
        except RuntimeError as error:
            os._exit(7 if "fence of step 0" in str(error) else 1)
        os._exit(0)

    waiting = [_fork.Process(target=wait_in_vain, args=(rank,)) for rank in range(2)]
    absent = _fork.Process(target=signal.pause)  # rank 2, which never arrives
    for process in (*waiting, absent):
        process.start()
    os.kill(absent.pid or 0, signal.SIGKILL)
    absent.join(20)
    assert all(process.is_alive() for process in waiting)
    lost.set()
    for process in waiting:
        process.join(20)
    assert [process.exitcode for process in waiting] == [7, 7]


def test_generations_have_pages_of_their_own(tmp_path: Path) -> None:
    mine, other = Fences(str(tmp_path), 0, 2), Fences(str(tmp_path), 1, 2)
    old = other.of(Generation(1))
    with pytest.raises(RuntimeError):
        old.meet(StepNumber(5), lambda: True)  # an old member that has arrived, late
    with pytest.raises(RuntimeError):
        mine.of(Generation(2)).meet(StepNumber(5), lambda: True)
    assert mine.of(Generation(2)) is mine.of(Generation(2))
    done = threading.Thread(target=lambda: mine.of(Generation(2)).meet(StepNumber(5), lambda: False))
    done.start()
    other.of(Generation(2)).meet(StepNumber(5), lambda: False)
    done.join(20)
    assert not done.is_alive()
    assert [file.name for file in tmp_path.iterdir()] == ["fence-2"]


def test_nobody_waits_for_a_rank_that_is_absent(tmp_path: Path) -> None:
    first, last = (Fences(str(tmp_path), rank, RANKS) for rank in (0, 2))
    first.absent = last.absent = (1,)
    with pytest.raises(RuntimeError):
        first.of(Generation(2)).meet(StepNumber(7), lambda: True)  # it does wait for the one that is present
    last.of(Generation(2)).meet(StepNumber(7), lambda: False)


def test_without_shared_memory_all_ranks_use_the_barrier_of_the_group(tmp_path: Path) -> None:
    """Also a rank that comes when there is memory again: what the first one found holds for all."""
    with small_disk(tmp_path / "shared", "16k") as shared:
        ranks = [Fences(str(shared), rank, RANKS) for rank in range(RANKS)]
        page = ranks[0].of(Generation(1))
        assert isinstance(page, SharedFence)
        fill(shared / "other")
        assert isinstance(ranks[1].of(Generation(1)), SharedFence), "the page is there with all its memory"
        assert isinstance(ranks[1].of(Generation(2)), GroupFence)
        (shared / "other").unlink()
        assert isinstance(ranks[0].of(Generation(2)), GroupFence)
        assert isinstance(ranks[2].of(Generation(2)), GroupFence)
        assert all(isinstance(fences.of(Generation(3)), SharedFence) for fences in ranks)


def test_a_page_that_somebody_removes_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    removed: list[str] = []

    def link_and_lose(source: str, target: str) -> None:
        link(source, target)
        if not removed:
            removed.append(target)
            os.unlink(target)  # a rank that is in the next generation already

    monkeypatch.setattr(os, "link", link_and_lose)
    assert isinstance(Fences(str(tmp_path), 0, RANKS).of(Generation(1)), SharedFence) and removed
