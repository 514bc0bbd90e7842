"""The ten rules by which the emulated backend is like NCCL, each with a test that fails without it."""

import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.queued_device.ranks import SOON, STANDS, TIMEOUT, RankOfOne, World, every_byte, in_all, world
from torch._C._distributed_c10d import ErrorType, HashStore, ReconfigureOptions, TCPStore

from understudy.groups.store import InterruptibleStore
from understudy_testkit.queued_device.backend import QueuedBackend
from understudy_testkit.queued_device.communicator import OWN_ABORT, PEERS_ABORT
from understudy_testkit.queued_device.device import QueuedDevice
from understudy_testkit.queued_device.race_detector import DataRace


def test_collectives_give_what_gloo_gives() -> None:
    with world() as made:
        tensors = [rank.full(place + 1.0) for place, rank in enumerate(made.ranks)]
        for rank, tensor in zip(made.ranks, tensors, strict=True):
            rank.sum(tensor).wait()
        for rank, tensor in zip(made.ranks, tensors, strict=True):
            assert rank.device.drain(SOON)
            assert tensor.tolist() == [3.0] * 4


# -- 1 ----------------------------------------------------------------------------------------------------------------


def test_1_a_tensor_of_the_host_is_refused() -> None:
    with world() as made:
        backend = made.ranks[0].backend
        with pytest.raises(RuntimeError, match="of a tensor of the host"):
            backend.allreduce([torch.zeros(4)])
        with pytest.raises(RuntimeError, match="of a tensor of the host"):
            backend.send([torch.zeros(4)], 1, 0)


# -- 2 ----------------------------------------------------------------------------------------------------------------


def test_2_wait_does_not_wait() -> None:
    with world() as made:
        one, _other = made.ranks
        work = one.sum(one.full(1.0))  # the other rank never comes
        begun = time.monotonic()
        assert work.wait()
        assert time.monotonic() - begun < SOON
        assert not work.is_completed()
        one.backend.abort()


def test_2_wait_raises_once_an_error_is_known() -> None:
    with world() as made:
        one, _other = made.ranks
        work = one.sum(one.full(1.0))
        one.backend.abort()
        with pytest.raises(dist.DistBackendError, match="was aborted"):
            work.wait()


def test_2_a_barrier_that_is_not_asynchronous_waits() -> None:
    with world() as made:
        one, _other = made.ranks
        work = one.backend.barrier()
        ended = threading.Event()

        def wait() -> None:
            with pytest.raises(dist.DistBackendError):
                work.wait()
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        assert not ended.wait(STANDS)
        one.backend.abort()
        assert ended.wait(SOON)


# -- 3 ----------------------------------------------------------------------------------------------------------------


def test_3_a_lost_peer_lets_the_queue_stand_until_an_abort_and_raises_nothing() -> None:
    with world() as made:
        one, other = made.ranks
        work = one.sum(one.full(1.0))
        other.die()
        event = one.device.record_event()
        assert not one.device.drain(STANDS)
        assert not event.query() and work.wait() and one.backend.get_error() == ErrorType.SUCCESS
        one.backend.abort()
        assert one.device.drain(SOON) and event.query()


# -- 4 ----------------------------------------------------------------------------------------------------------------


def test_4_after_an_own_abort_the_queue_goes_on_with_a_pattern() -> None:
    with world() as made:
        one, _other = made.ranks
        gradient, parameter = one.full(1.0), one.full(5.0)
        one.sum(gradient)
        with one.device.used():
            parameter.sub_(gradient)  # an optimizer that nothing holds back
        one.backend.abort()
        assert one.device.drain(SOON)
        assert every_byte(gradient, OWN_ABORT)
        assert (parameter < -1e15).all()


def test_4_a_peer_that_has_not_aborted_gets_a_pattern_and_succeeds() -> None:
    with world() as made:
        one, other = made.ranks
        gradient = other.full(1.0)
        work = other.sum(gradient)
        one.backend.abort()
        assert other.device.drain(SOON)
        assert every_byte(gradient, PEERS_ABORT)
        assert work.wait() and work.is_success() and other.backend.get_error() == ErrorType.SUCCESS


def test_4_contagion_can_be_switched_off() -> None:
    with world(contagion=False) as made:
        one, other = made.ranks
        other.sum(other.full(1.0))
        one.backend.abort()
        assert not other.device.drain(STANDS)
        other.backend.abort()
        assert other.device.drain(SOON)


def test_4_what_a_rank_had_finished_is_right_for_its_peers() -> None:
    """The message was taken before the abort; the next one was not."""
    with world() as made:
        one, other = made.ranks
        first, second = other.full(0.0), other.full(0.0)
        one.backend.send([one.full(3.0)], 1, 0)
        other.backend.recv([first], 0, 0)
        assert one.device.drain(SOON)
        one.backend.abort()
        other.backend.recv([second], 0, 0)
        assert other.device.drain(SOON)
        assert first.tolist() == [3.0] * 4
        assert every_byte(second, PEERS_ABORT)


def test_4_two_live_ranks_still_reach_each_other_by_messages() -> None:
    with world(3) as made:
        aborted, one, other = made.ranks
        aborted.backend.abort()
        got = other.full(0.0)
        one.backend.send([one.full(2.0)], 2, 0)
        other.backend.recv([got], 1, 0)
        assert other.device.drain(SOON)
        assert got.tolist() == [2.0] * 4


# -- 5 ----------------------------------------------------------------------------------------------------------------


def test_5_after_an_abort_every_call_raises_until_it_is_formed_by_an_unused_uuid() -> None:
    with world() as made:
        for rank in made.ranks:
            rank.backend.abort()
            rank.backend.abort()  # again, which changes nothing
            assert rank.backend.get_error() == ErrorType.COMM_ERROR
            tensor = rank.full(1.0)
            for call in (
                lambda rank=rank, tensor=tensor: rank.backend.allreduce([tensor]),
                lambda rank=rank, tensor=tensor: rank.backend.recv([tensor], 0, 0),
                rank.backend.barrier,
            ):
                with pytest.raises(dist.DistBackendError, match="reconfigure"):
                    call()
        made.form(unique=77)
        tensors = [rank.full(1.0) for rank in made.ranks]
        for rank, tensor in zip(made.ranks, tensors, strict=True):
            assert rank.backend.get_error() == ErrorType.SUCCESS
            rank.sum(tensor)
        assert all(rank.device.drain(SOON) for rank in made.ranks)
        assert [tensor.tolist() for tensor in tensors] == [[2.0] * 4] * 2
        rank, options = next(made.options(77, timedelta(seconds=1)))
        with pytest.raises(RuntimeError, match="uuid 77 was already used"):
            rank.backend.reconfigure(options)


def test_5_nothing_works_before_it_is_formed() -> None:
    made = World()
    with pytest.raises(RuntimeError, match="call reconfigure"):
        made.ranks[0].sum(made.ranks[0].full(1.0))


def test_5_a_handle_names_what_the_rank_is_in() -> None:
    with world() as made:
        rank, options = next(made.options(78))
        made.form(79)
        assert rank.backend.get_reconfigure_handle().startswith("queued:0:79:")
        with pytest.raises(RuntimeError, match="is not among the handles"):
            rank.backend.reconfigure(options)


def test_5_work_of_the_former_communicator_raises() -> None:
    with world() as made:
        work = made.ranks[0].sum(made.ranks[0].full(1.0))
        made.form()
        with pytest.raises(dist.DistBackendError, match="was aborted"):
            work.wait()


def test_5_another_process_takes_a_place() -> None:
    with world() as made:
        made.ranks[1].die()
        made.ranks[0].backend.abort()
        made.ranks[1] = RankOfOne(made.store, 1, 2, contagion=True)
        made.form()
        tensors = [rank.full(1.0) for rank in made.ranks]
        for rank, tensor in zip(made.ranks, tensors, strict=True):
            rank.sum(tensor)
            assert rank.backend.rank() == made.ranks.index(rank)
        assert all(rank.device.drain(SOON) for rank in made.ranks)
        assert tensors[0].tolist() == [2.0] * 4


# -- 6 ----------------------------------------------------------------------------------------------------------------


def alone_of_two(store: object) -> tuple[QueuedBackend, list[str]]:
    """Its peer has shown a handle and will never connect."""
    backends = [QueuedBackend(QueuedDevice(), store, rank, 2, TIMEOUT, True) for rank in range(2)]  # type: ignore[arg-type]
    return backends[0], [backend.get_reconfigure_handle() for backend in backends]


def asked(unique: int, handles: list[str], seconds: float) -> ReconfigureOptions:
    options = ReconfigureOptions()
    options.uuid, options.handles, options.timeout = unique, handles, timedelta(seconds=seconds)
    return options


def fail_to_form(backend: QueuedBackend, options: ReconfigureOptions) -> None:
    with pytest.raises(RuntimeError):
        backend.reconfigure(options)


def test_6_forming_ends_by_its_own_timeout_and_a_second_call_waits_for_the_first() -> None:
    backend, handles = alone_of_two(HashStore())
    first = threading.Thread(target=fail_to_form, args=(backend, asked(1, handles, 2.0)))
    begun = time.monotonic()
    first.start()
    time.sleep(0.2)
    fail_to_form(backend, asked(2, handles, 0.1))
    assert time.monotonic() - begun > 1.9
    first.join(SOON)
    assert backend.get_error() == ErrorType.SUCCESS


def test_6_forming_is_not_interrupted_by_the_store() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    abandoned = threading.Event()
    store = InterruptibleStore("127.0.0.1", server.port, abandoned.is_set, TIMEOUT)
    backend, handles = alone_of_two(store)
    threading.Timer(0.1, abandoned.set).start()
    begun = time.monotonic()
    fail_to_form(backend, asked(1, handles, 1.0))
    assert time.monotonic() - begun > 0.9


# -- 7 ----------------------------------------------------------------------------------------------------------------


def test_7_blocking_an_abort_waits_for_the_work_of_its_group_so_two_groups_can_block_each_other() -> None:
    """Groups without the flag. The second one's operation is queued behind the first one's, which stands."""
    device, other = QueuedDevice(), QueuedDevice()
    stores = HashStore(), HashStore()
    groups: list[QueuedBackend] = []
    for store in stores:
        ranks: dict[int, QueuedBackend] = {}

        def make(
            rank: int, its: QueuedDevice, store: HashStore = store, ranks: dict[int, QueuedBackend] = ranks
        ) -> None:
            ranks[rank] = QueuedBackend(its, store, rank, 2, TIMEOUT, False)

        in_all([lambda: make(0, device), lambda: make(1, other)])
        groups.append(ranks[0])
    with device.used():
        for group in groups:
            group.allreduce([torch.ones(2)])
    ended = threading.Event()

    def abort() -> None:
        groups[1].abort()
        ended.set()

    threading.Thread(target=abort, daemon=True).start()
    assert not ended.wait(STANDS)
    groups[0].abort()
    assert ended.wait(SOON)


def test_7_not_blocking_an_abort_returns_while_the_queue_stands() -> None:
    with world() as made:
        one, _other = made.ranks
        with one.device.held():
            one.sum(one.full(1.0))
            one.backend.abort()


# -- 8 ----------------------------------------------------------------------------------------------------------------

_FAILS = """
import sys, time
from datetime import timedelta
import torch
from torch._C._distributed_c10d import HashStore
from understudy_testkit.queued_device.backend import QueuedBackend
from understudy_testkit.queued_device.device import QueuedDevice
device = QueuedDevice(watchdog_every=0.05)
backend = QueuedBackend(device, HashStore(), 0, 1, timedelta(seconds=5), sys.argv[1] == "with")
backend.fail()
print("alive", backend.get_error(), flush=True)
import os; os._exit(0)
"""


@pytest.mark.processes
def test_8_without_the_flag_an_error_ends_the_process() -> None:
    def run(flag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _FAILS, flag], check=False, capture_output=True, text=True, timeout=120
        )

    ended = run("without")
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    lived = run("with")
    assert lived.returncode == 0, lived.stderr
    assert "alive ErrorType.COMM_ERROR" in lived.stdout


def test_8_the_watchdog_sees_what_takes_too_long() -> None:
    with world() as made:
        one, _other = made.ranks
        one.backend.options._timeout = timedelta(seconds=0.2)
        hooked: list[ErrorType] = []
        one.backend.register_abort_hook(1, lambda: hooked.append(one.backend.get_error()))
        one.sum(one.full(1.0))
        assert one.device.drain(SOON)
        assert one.backend.get_error() == ErrorType.TIMEOUT
        assert hooked == [ErrorType.TIMEOUT]  # the error is known before the hooks


# -- 9 ----------------------------------------------------------------------------------------------------------------


def test_9_memory_that_a_collective_has_still_to_write_is_not_read() -> None:
    with world() as made:
        one, _other = made.ranks
        tensor = one.full(1.0)
        one.device.watch()
        try:
            one.sum(tensor)
            for read in (tensor.numpy, tensor.tolist, tensor.data_ptr):
                with pytest.raises(DataRace):
                    read()
            one.backend.abort()
            assert one.device.drain(SOON)
            tensor.numpy()
        finally:
            one.device.unwatch()


# -- 10 ---------------------------------------------------------------------------------------------------------------


def test_10_a_batch_stays_open_over_an_abort_and_takes_what_comes() -> None:
    with world() as made:
        one, other = made.ranks
        one.backend.start_coalescing()
        one.backend.send([one.full(1.0)], 1, 0)
        for rank in made.ranks:
            rank.backend.abort()
        with pytest.raises(dist.DistBackendError):  # the step is cut short here
            one.backend.recv([one.full(0.0)], 1, 0)
        made.form()
        got = one.full(0.0)
        assert one.backend.recv([got], 1, 0) is None  # nothing to wait for: whoever asked takes it for done
        other.backend.send([other.full(2.0)], 0, 0)
        assert one.device.drain(SOON) and got.tolist() == [0.0] * 4  # it is in the old batch
        with pytest.raises(RuntimeError, match="open already"):
            one.backend.start_coalescing()
        other.backend.abort()


def test_10_a_batch_that_is_ended_while_its_communicator_is_broken_sends_nothing() -> None:
    with world() as made:
        one, other = made.ranks
        one.backend.start_coalescing()
        one.backend.send([one.full(1.0)], 1, 0)
        for rank in made.ranks:
            rank.backend.abort()
        with pytest.raises(dist.DistBackendError):
            one.backend.end_coalescing()
        made.form()
        got = one.full(0.0)
        one.backend.recv([got], 1, 0)
        other.backend.send([other.full(2.0)], 0, 0)
        assert one.device.drain(SOON) and got.tolist() == [2.0] * 4
        with pytest.raises(RuntimeError, match="no batch is open"):
            one.backend.end_coalescing()
