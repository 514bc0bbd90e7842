"""State travels between threads that each have a real gloo group of their own."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from understudy.errors import TransferError, UnfitError
from understudy.ledger.records import TransferRecord
from understudy.state.protected_state import Protected
from understudy.state.transfer import p2p
from understudy.state.transfer.chunks import SMALL
from understudy.state.transfer.manifest import Manifest, TensorEntry, landing_place, manifest_of
from understudy.state.transfer.receiver import Receiver
from understudy.state.transfer.sender import Request, Sender, Word
from understudy.state.transfer.vm_read import Landmark, MemoryReader

CHATTER = 4096  # bytes of contents, digests and words at most
WIDE = 160  # one weight is larger than SMALL


class PerThread:
    """Stands in for `torch.distributed`: each thread speaks through its own group."""

    Work = dist.Work

    def __init__(self, size: int) -> None:
        self.size, self._store, self._own = size, HashStore(), threading.local()
        self.damage: Callable[[torch.Tensor], None] = lambda _: None
        self.sent: list[int] = [0] * size

    def enter(self, rank: int) -> None:
        self._own.rank = rank
        self._own.group = dist.ProcessGroupGloo(self._store, rank, self.size, timedelta(seconds=20))

    def isend(self, tensor: torch.Tensor, to: int) -> Any:
        tensor = tensor.clone()
        self.sent[self._own.rank] += tensor.numel()
        self.damage(tensor)
        return self._own.group.send([tensor], to, 0)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        self._own.group.send([tensor], to, 0).wait()

    def irecv(self, tensor: torch.Tensor, source: int) -> Any:
        return self._own.group.recv([tensor], source, 0)

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        self.irecv(tensor, source).wait()


@pytest.fixture
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PerThread:
    """A world of one receiver (rank 0) and as many donors as the test asks for."""
    made = PerThread(1 + getattr(request, "param", 1))
    monkeypatch.setattr(p2p, "dist", made)
    return made


def make(seed: int, steps: int, width: int = WIDE) -> Protected:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 8).bfloat16(), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model[0].parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(steps):
        model[0](torch.rand(2, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return Protected(modules={"model": model}, optimizers={"optimizer": optimizer}, objects={"scheduler": scheduler})


def numbers(protected: Protected) -> dict[str, int]:
    """Path -> number of its unit; the same for whoever has the same paths."""
    return {path: 1 + place for place, path in enumerate(protected.units())}


def move(line: PerThread, receiver: Protected, donors: list[Protected], read_memory: bool = False) -> TransferRecord:
    """One transfer from all donors. Errors come out here."""
    results: dict[int, Any] = {}
    channels = [p2p.Channel() for _ in range(len(donors) + 1)]  # they outlive the threads, as a member's does

    def act(rank: int) -> None:
        try:
            line.enter(rank)
            if rank == 0:
                everybody = list(range(1, len(donors) + 1))
                results[0] = Receiver(channels[0], 0, receiver, everybody, read_memory=read_memory).run(lambda: None)
            else:
                Sender(donors[rank - 1], numbers(donors[rank - 1])).send_to(channels[rank], 0)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=act, args=[rank]) for rank in range(len(donors) + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if isinstance(results.get(0), Exception):
        raise results[0]
    assert list(results) == [0], results
    assert isinstance(results[0], TransferRecord)
    return results[0]


def digests(protected: Protected) -> tuple[str, str, str]:
    return protected.digest_parameters(), protected.digest_optimizer(), protected.digest_everything()


@pytest.mark.parametrize("line", [1, 2, 3], indirect=True)
def test_a_joiner_without_optimizer_state_gets_everything(line: PerThread) -> None:
    donors = [make(1, steps=3) for _ in range(line.size - 1)]
    joiner = make(2, steps=0)
    received = move(line, joiner, donors).received
    assert digests(joiner) == digests(donors[0])
    size = sum(tensor.numel() * tensor.element_size() for tensor in donors[0].inventory().tensors.values())
    assert received == size <= sum(line.sent) < size + CHATTER * line.size
    if line.size > 2:
        assert all(line.sent[1:]), "every donor sends its share"


def test_what_fits_lands_in_the_receivers_own_storage(line: PerThread) -> None:
    donor, laggard = make(1, steps=3), make(2, steps=1)
    before = {path: tensor.data_ptr() for path, tensor in laggard.inventory().tensors.items()}
    move(line, laggard, [donor])
    after = laggard.inventory().tensors
    assert digests(laggard) == digests(donor)
    assert {path: after[path].data_ptr() for path in before} == before


def test_state_without_large_tensors(line: PerThread) -> None:
    donor, joiner = make(1, 2, width=8), make(2, 0, width=8)
    move(line, joiner, [donor])
    assert digests(joiner) == digests(donor)


@pytest.mark.parametrize("line", [2], indirect=True)
def test_more_donors_than_large_tensors(line: PerThread) -> None:
    donors, joiner = [make(1, 2, width=8) for _ in range(2)], make(2, 0, width=8)
    move(line, joiner, donors)
    assert digests(joiner) == digests(donors[0])


@pytest.mark.parametrize("line", [1, 2], indirect=True)
@pytest.mark.parametrize("large", [True, False])
def test_a_flipped_bit_on_the_way_is_detected(line: PerThread, large: bool) -> None:
    donors = [make(1, steps=1) for _ in range(line.size - 1)]
    shared = numbers(donors[0]) if len(donors) > 1 else donors[0].inventory().tensors  # buffers come from one donor
    small = sum(t.nbytes for path, t in donors[0].inventory().tensors.items() if t.nbytes < SMALL and path in shared)
    struck = WIDE * WIDE * 4 if large else small

    def damage(tensor: torch.Tensor) -> None:
        if tensor.numel() == struck:
            tensor[tensor.numel() // 2] ^= 4

    line.damage = damage
    with pytest.raises(TransferError, match="does not match its digest"):
        move(line, make(2, steps=0), donors)


def corrupt(protected: Protected) -> None:
    with torch.no_grad():
        protected.modules["model"][0].weight[3, 3] += 1.0  # type: ignore[index]


@pytest.mark.parametrize("line", [3], indirect=True)
@pytest.mark.parametrize("read_memory", [True, False])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_donor_that_disagrees_with_its_twins_is_not_used(line: PerThread, read_memory: bool, wrong: int) -> None:
    donors, joiner = [make(1, steps=2) for _ in range(3)], make(2, steps=0)
    corrupt(donors[wrong])
    received = move(line, joiner, donors, read_memory)
    assert digests(joiner) == digests(donors[2])
    assert received.distrusted == (wrong + 1,)


@pytest.mark.parametrize("line", [2], indirect=True)
def test_two_donors_that_disagree_accuse_each_other(line: PerThread) -> None:
    donors = [make(1, steps=2) for _ in range(2)]
    corrupt(donors[0])
    with pytest.raises(TransferError, match=r"ranks 1 and 2 hold different bytes of parameters/model/0.weight"):
        move(line, make(2, steps=0), donors)


def test_a_donor_of_another_shape_is_refused(line: PerThread) -> None:
    with pytest.raises(UnfitError, match=r"parameters/model/0.weight is .* here but .* at a rank that has trained"):
        move(line, make(2, 0, width=WIDE + 8), [make(1, 1, width=WIDE)])


def test_a_plain_part_that_was_damaged_on_its_way_is_refused() -> None:
    manifest = manifest_of(make(1, 1).inventory(), {}, Landmark(), "")
    manifest.check(0)
    with pytest.raises(TransferError, match="besides tensors"):
        msgspec.structs.replace(manifest, plain=manifest.plain + b"x").check(0)


class FormerEntry(msgspec.Struct, frozen=True, array_like=True):
    path: str
    unit: int
    dtype: str
    shape: tuple[int, ...]
    address: int


class FormerManifest(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[FormerEntry]
    plain: bytes
    plain_digest: str
    host: str
    pid: int
    landmark: bytes
    landmark_address: int


class FormerRequest(msgspec.Struct, frozen=True, kw_only=True, tag="Request"):
    give: list[list[tuple[str, int, int]]]
    vouch: list[list[tuple[str, int, int]]]
    read: bool


def test_a_neighbouring_version_that_knows_nothing_of_devices_is_understood_and_understands() -> None:
    """What it does not say means: everything goes through host memory."""
    inventory = make(1, 1).inventory()
    inventory.of_device = frozenset(inventory.tensors)
    manifest = manifest_of(inventory, {}, Landmark(), "", by_device=True)
    assert manifest.by_device and all(entry.on_device for entry in manifest.lines)
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=FormerManifest)
    assert [entry.path for entry in heard.lines] == [*inventory.tensors]
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(heard), type=Manifest)
    assert not told.by_device and not any(entry.on_device for entry in told.lines)
    one = ("parameters/model/0.weight", 0, 8)
    request = Request(give=[[one]], vouch=[], read=False)
    heard_request = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=FormerRequest)
    assert heard_request.give == [[one]]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(heard_request), type=Word) == request


def test_an_unknown_type_of_tensor_is_refused() -> None:
    with pytest.raises(TransferError, match="unknown type"):
        landing_place(TensorEntry("optimizer/o/0/m", 0, "float31", (2,), 0), None)


@pytest.mark.parametrize("line", [1, 2], indirect=True)
def test_on_the_same_host_large_tensors_are_read_from_memory(line: PerThread) -> None:
    donors, joiner = [make(1, steps=3) for _ in range(line.size - 1)], make(2, steps=0)
    received = move(line, joiner, donors, read_memory=True)
    assert digests(joiner) == digests(donors[0]) and received.from_memory
    small = sum(t.nbytes for t in donors[0].inventory().tensors.values() if t.nbytes < SMALL)
    assert small <= sum(line.sent) < small + CHATTER * line.size < received.received


def test_damage_on_the_way_out_of_memory_is_detected(line: PerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    read = MemoryReader.read

    def read_and_damage(self: MemoryReader, address: int, into: torch.Tensor) -> None:
        read(self, address, into)
        if into.nbytes >= SMALL:
            into.view(torch.uint8).reshape(-1)[7] ^= 1

    monkeypatch.setattr(MemoryReader, "read", read_and_damage)
    with pytest.raises(TransferError, match="does not match its digest"):
        move(line, make(2, steps=0), [make(1, steps=1)], read_memory=True)


def test_where_memory_cannot_be_read_the_group_is_used(line: PerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(MemoryReader, "read", refuse)
    donor, joiner = make(1, steps=2), make(2, steps=0)
    received = move(line, joiner, [donor], read_memory=True)
    assert digests(joiner) == digests(donor) and not received.from_memory
    assert received.received <= sum(line.sent) < received.received + CHATTER


def test_memory_of_another_process_is_not_taken_for_the_donors() -> None:
    mark = Landmark()
    assert MemoryReader(os.getpid()).works(mark.address, mark.content)
    assert not MemoryReader(os.getpid()).works(mark.address, b"something else!!")
    assert not MemoryReader(1 << 22).works(mark.address, mark.content)


def test_a_receiver_whose_donor_never_comes_keeps_what_it_holds(line: PerThread) -> None:
    laggard, torn = make(2, steps=1), []
    before = digests(laggard)

    def silent_donor() -> None:
        line.enter(1)  # and dies: its connection is closed with its group

    thread = threading.Thread(target=silent_donor)
    thread.start()
    line.enter(0)
    thread.join()
    with pytest.raises(RuntimeError):
        Receiver(p2p.Channel(), 0, laggard, [1]).run(lambda: torn.append(True))
    assert digests(laggard) == before
    assert not torn
