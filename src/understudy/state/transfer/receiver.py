"""The receiver's side of a transfer: everything lands in its own storage, and nothing is believed that is not vouched
for.

Each donor shows its manifest. The receiver picks a giver for every chunk, and asks another holder for its
digest. Large tensors are read straight out of the giver's memory where the receiver may do that (the same host),
otherwise they go over the process group from storage to storage; from device to device by groups of the device, if all
donors can do that (`device_path`). What arrives must match its giver's digest. Where two
holders differ all others are asked as well; a holder that differs from the majority is not used. A new fault
breaks the connections, so that a blocked transfer raises at once. A receiver's state is torn from its first byte to the
end, and whole while it waits for its turn.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
import torch

from understudy.errors import TransferError
from understudy.ledger.records import TransferRecord
from understudy.state.digests import digest_one, digest_text
from understudy.state.protected_state import PARAMETERS, Inventory, Protected
from understudy.state.transfer.chunks import Chunk, FlatViews, Order, make_chunks, place_orders, size_of
from understudy.state.transfer.device_path import DevicePath
from understudy.state.transfer.manifest import Manifest, TensorEntry, landing_place, write_back
from understudy.state.transfer.p2p import Channel
from understudy.state.transfer.sender import Content, Damaged, Request
from understudy.state.transfer.vm_read import MemoryReader
from understudy.state.transfer.window import ReceiveWindow

_DIGEST = 16  # bytes


@dataclass(slots=True)
class _Arrival:
    """One chunk on its way from `donor`, and what is known of its digest."""

    chunk: Chunk
    donor: int
    holders: tuple[int, ...]
    digest: bytes = b""
    told: dict[int, bytes] = field(default_factory=dict)  # by donor

    def verdict(self) -> tuple[bool, set[int]]:
        """Whether what arrived is right, and the donors whose digest differs from that of the majority. Without a
        majority it is not right as long as other holders can be asked."""
        if self.digest != self.told[self.donor]:
            raise TransferError(f"state from rank {self.donor} does not match its digest")
        if len(set(self.told.values())) == 1:
            return True, set()
        most, votes = Counter(self.told.values()).most_common(1)[0]
        if 2 * votes > len(self.told):
            return self.digest == most, {donor for donor, digest in self.told.items() if digest != most}
        if len(self.told) < len(self.holders):
            return False, set()
        ranks = " and ".join(str(rank) for rank in sorted(self.told))
        raise TransferError(
            f"ranks {ranks} hold different bytes of {self.chunk[0].path}: which is right cannot be told"
        )


class Receiver:
    """One transfer to `rank`. `wanted`: the units of this rank, None when the donors hold exactly what it holds."""

    def __init__(
        self,
        channel: Channel,
        rank: int,
        protected: Protected,
        donors: Sequence[int],
        wanted: Collection[int] | None = None,
        host: str = "",
        read_memory: bool = True,
        moved: Callable[[], None] = lambda: None,
        path: DevicePath | None = None,
    ) -> None:
        """`moved` is called whenever something has arrived. `path`: the way from device to device, if there is one."""
        self._channel, self._rank, self._protected, self._donors = channel, rank, protected, donors
        self._wanted, self._host, self._read_memory, self._moved = wanted, host, read_memory, moved
        self._path = path  # None from the moment on at which a donor is known that has none
        self._of_device: set[str] = set()
        self._own = protected.inventory().tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._flat = FlatViews(self._tensors)
        self._holders: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[tuple[int, str], int] = {}
        self._readers: dict[int, MemoryReader] = {}
        self._distrusted: frozenset[int] = frozenset()
        self._vouchers = 1
        self._checked = 0
        self._arrived: dict[Chunk, bytes] = {}

    def run(self, before_first_byte: Callable[[], None]) -> TransferRecord:
        start = time.monotonic()
        manifests = {donor: self._manifest_of(donor) for donor in self._donors}
        self._plan_landing(manifests)
        before_first_byte()
        given: Counter[int] = Counter()
        try:
            open_chunks = self._chunks()
            while open_chunks:
                arrivals = self._fetch(open_chunks)
                open_chunks = self._judge(arrivals)
                for arrival in arrivals:
                    given[arrival.donor] += size_of(arrival.chunk)
        except TransferError as error:
            self._tell_all(Damaged(why=str(error)))
            raise
        self._tell_all(Content(distrusted=sorted(self._distrusted)))
        write_back(self._own, self._tensors, self._of_device)
        self._protected.install(Inventory(self._tensors, manifests[self._donors[0]].plain))
        return TransferRecord(
            receiver=self._rank,
            given=dict(given),
            seconds=time.monotonic() - start,
            checked=self._checked,
            digest=self._digest(),
            from_memory=bool(self._readers),
            distrusted=tuple(sorted(self._distrusted)),
        )

    # -- planning -----------------------------------------------------------------------------------------------------

    def _manifest_of(self, donor: int) -> Manifest:
        manifest = msgspec.msgpack.decode(self._channel.receive_bytes(donor), type=Manifest)
        manifest.check(donor)
        return manifest

    def _plan_landing(self, manifests: dict[int, Manifest]) -> None:
        if not all(manifest.by_device for manifest in manifests.values()):
            self._path = None
        for donor, manifest in manifests.items():
            reader = manifest.reader(self._host) if self._read_memory else None
            if reader is not None:
                self._readers[donor] = reader
            for entry in manifest.lines:
                if self._needs(donor, entry):
                    self._add(donor, entry)

    def _needs(self, donor: int, entry: TensorEntry) -> bool:
        """What belongs to no parameter (buffers, schedulers) may differ between replicas, and is taken from one: the
        first donor, or for buffers that it lacks the first that has them."""
        if entry.unit:
            return self._wanted is None or entry.unit in self._wanted
        if donor == self._donors[0]:
            return self._wanted is None or entry.path in self._own or not entry.path.startswith(PARAMETERS)
        return entry.path in self._own and entry.path not in self._tensors

    def _add(self, donor: int, entry: TensorEntry) -> None:
        if entry.path not in self._tensors:
            new = self._path.new if self._path is not None and entry.on_device else None
            self._tensors[entry.path] = landing_place(entry, self._own.get(entry.path), new)
            self._holders[entry.path] = ()
            if entry.on_device:
                self._of_device.add(entry.path)
        if self._path is None or entry.on_device == (entry.path in self._of_device):
            self._holders[entry.path] += (donor,)
            self._addresses[donor, entry.path] = entry.address

    def _chunks(self) -> list[tuple[Chunk, tuple[int, ...]]]:
        """None has both what comes by the device and what does not."""
        by_device = self._of_device if self._path is not None else set[str]()
        sizes = {path: tensor.nbytes for path, tensor in self._tensors.items() if path not in by_device}
        chunks = make_chunks(sizes, self._holders)
        if self._path is not None:
            sizes = {path: self._tensors[path].nbytes for path in self._tensors if path in by_device}
            chunks += make_chunks(sizes, self._holders, self._path.chunk)
        return chunks

    def _comes_by_device(self, chunk: Chunk) -> bool:
        return self._path is not None and chunk[0].path in self._of_device

    # -- one round ----------------------------------------------------------------------------------------------------

    def _fetch(self, chunks: list[tuple[Chunk, tuple[int, ...]]]) -> list[_Arrival]:
        """Order, receive and take digests. A second round is for chunks about which two holders differ."""
        read = len(self._readers) == len(self._donors)
        holders = dict(chunks)
        orders = self._place([pair for pair in chunks if not self._comes_by_device(pair[0])], spread=not read)
        by_device = self._place([pair for pair in chunks if self._comes_by_device(pair[0])], spread=True)
        self._vouchers = len(self._donors)  # for chunks that come a second time all holders are asked
        for donor, order in orders.items():
            self._channel.send_bytes(msgspec.msgpack.encode(_request(order, by_device[donor], read)), donor)
        arrivals = _arrivals(orders, holders)
        if read:
            self._read(arrivals)
        else:
            self._receive(arrivals)
        self._hear_digests(orders, arrivals)
        return arrivals + self._fetch_by_device(by_device, holders)

    def _place(self, chunks: list[tuple[Chunk, tuple[int, ...]]], *, spread: bool) -> dict[int, Order]:
        return place_orders(chunks, self._donors, spread=spread, vouchers=self._vouchers, distrusted=self._distrusted)

    def _fetch_by_device(self, orders: dict[int, Order], holders: dict[Chunk, tuple[int, ...]]) -> list[_Arrival]:
        if self._path is None:
            return []
        arrivals = {arrival.chunk: arrival for arrival in _arrivals(orders, holders)}
        self._hear_digests(orders, [*arrivals.values()])
        given = {donor: order.give for donor, order in orders.items()}
        for chunk, digest in self._path.receive(self._flat, given):
            arrivals[chunk].digest = digest
            self._moved()
        return [*arrivals.values()]

    def _receive(self, arrivals: list[_Arrival]) -> None:
        """Over the process group, from all donors in turns. A chunk's digest is taken at once, out of the
        processor's cache, while the next ones are on their way."""
        by_donor: dict[int, list[_Arrival]] = {}
        for arrival in arrivals:
            by_donor.setdefault(arrival.donor, []).append(arrival)
        windows = [ReceiveWindow(self._channel, donor, own, self._buffer_of) for donor, own in by_donor.items()]
        for one_turn in zip_longest(*windows):
            for arrival, buffer in filter(None, one_turn):
                arrival.digest = digest_one(buffer)
                self._flat.take_apart(arrival.chunk, buffer)
                self._moved()

    def _read(self, arrivals: list[_Arrival]) -> None:
        """Large tensors out of the giver's memory, on all cores: the others wait for us. Small tensors still come
        together."""
        self._receive([arrival for arrival in arrivals if len(arrival.chunk) > 1])
        large = [arrival for arrival in arrivals if len(arrival.chunk) == 1]

        def read(arrival: _Arrival) -> bytes:
            (segment,) = arrival.chunk
            into = self._flat.slice_of(segment)
            self._readers[arrival.donor].read(self._addresses[arrival.donor, segment.path] + segment.start, into)
            return digest_one(into)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for arrival, digest in zip(large, threads.map(read, large), strict=True):
                arrival.digest = digest
                self._moved()

    def _buffer_of(self, arrival: _Arrival) -> torch.Tensor:
        """Where a chunk lands: in its own storage if it is a segment of one tensor."""
        chunk = arrival.chunk
        if len(chunk) == 1:
            return self._flat.slice_of(chunk[0])
        return torch.empty(size_of(chunk), dtype=torch.uint8)

    def _hear_digests(self, orders: dict[int, Order], arrivals: list[_Arrival]) -> None:
        by_chunk = {arrival.chunk: arrival for arrival in arrivals}
        for donor, order in orders.items():
            told = (*order.give, *order.vouch)
            if not told:
                continue
            digests = torch.empty(_DIGEST * len(told), dtype=torch.uint8)
            self._channel.receive(digests, donor)
            text = bytes(digests.numpy())
            for place, chunk in enumerate(told):
                by_chunk[chunk].told[donor] = text[_DIGEST * place : _DIGEST * (place + 1)]
            self._checked += len(told)

    def _judge(self, arrivals: list[_Arrival]) -> list[tuple[Chunk, tuple[int, ...]]]:
        """What has to be fetched again, from others."""
        again = []
        distrusted = set(self._distrusted)
        for arrival in arrivals:
            right, wrong = arrival.verdict()
            distrusted |= wrong
            if right:
                self._arrived[arrival.chunk] = arrival.digest
            else:
                again.append((arrival.chunk, arrival.holders))
        self._distrusted = frozenset(distrusted)
        return again

    def _digest(self) -> str:
        order = sorted(self._arrived, key=lambda chunk: (chunk[0].path, chunk[0].start))
        return digest_text(b"".join(self._arrived[chunk] for chunk in order))[:16]

    def _tell_all(self, word: Content | Damaged) -> None:
        for donor in self._donors:
            self._channel.send_bytes(msgspec.msgpack.encode(word), donor)


def _arrivals(orders: dict[int, Order], holders: dict[Chunk, tuple[int, ...]]) -> list[_Arrival]:
    return [_Arrival(chunk, donor, holders[chunk]) for donor, order in orders.items() for chunk in order.give]


def _request(order: Order, by_device: Order, read: bool) -> Request:
    def plain(chunks: list[Chunk]) -> list[list[tuple[str, int, int]]]:
        return [[(segment.path, segment.start, segment.length) for segment in chunk] for chunk in chunks]

    return Request(
        give=plain(order.give),
        vouch=plain(order.vouch),
        read=read,
        give_by_device=plain(by_device.give),
        vouch_on_device=plain(by_device.vouch),
    )
