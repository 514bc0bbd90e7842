"""The receiver's side of a transfer: everything lands in its own storage, and nothing is believed that is not vouched
for.

Each donor shows a table of contents. The receiver picks a giver for every parcel, and asks another holder for its
digest. Large tensors are read straight out of the giver's memory where the receiver may do that (the same host),
otherwise they go over the process group from storage to storage. What arrives must match its giver's digest. Where two
holders differ all others are asked as well; whoever differs from the majority is not used. A new fault
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
from understudy.state.contents import Contents, Line, landing_place, write_back
from understudy.state.digests import digest_one, digest_text
from understudy.state.giving import Content, Damaged, Request
from understudy.state.lanes import Lane
from understudy.state.mail import Mail
from understudy.state.manifest import PARAMETERS, Inventory, Protected
from understudy.state.parcels import FlatViews, Order, Parcel, make_parcels, place_orders, size_of
from understudy.state.same_host import Reader

_DIGEST = 16  # bytes


@dataclass(slots=True)
class _Arrival:
    """One parcel on its way from `donor`, and what is known of its digest."""

    parcel: Parcel
    donor: int
    holders: tuple[int, ...]
    digest: bytes = b""
    told: dict[int, bytes] = field(default_factory=dict)  # by donor

    def verdict(self) -> tuple[bool, set[int]]:
        """Is what arrived right, and who tells something else than most? Two that differ accuse each other, and then it
        is not right as long as others can be asked."""
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
            f"ranks {ranks} hold different bytes of {self.parcel[0].path}: nobody can tell who is right"
        )


class Taking:
    """One transfer to `rank`. `wanted`: the units of this rank, None when the donors hold exactly what it holds."""

    def __init__(
        self,
        mail: Mail,
        rank: int,
        protected: Protected,
        donors: Sequence[int],
        wanted: Collection[int] | None = None,
        host: str = "",
        read_memory: bool = True,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`moved` is called whenever something has arrived."""
        self._mail, self._rank, self._protected, self._donors = mail, rank, protected, donors
        self._wanted, self._host, self._read_memory, self._moved = wanted, host, read_memory, moved
        self._own = protected.inventory().tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._flat = FlatViews(self._tensors)
        self._holders: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[tuple[int, str], int] = {}
        self._readers: dict[int, Reader] = {}
        self._distrusted: frozenset[int] = frozenset()
        self._vouchers = 1
        self._checked = 0
        self._arrived: dict[Parcel, bytes] = {}

    def run(self, before_first_byte: Callable[[], None]) -> TransferRecord:
        start = time.monotonic()
        tables = {donor: self._table_of(donor) for donor in self._donors}
        self._plan_landing(tables)
        before_first_byte()
        given: Counter[int] = Counter()
        try:
            open_parcels = make_parcels({path: t.nbytes for path, t in self._tensors.items()}, self._holders)
            while open_parcels:
                arrivals = self._fetch(open_parcels)
                open_parcels = self._judge(arrivals)
                for arrival in arrivals:
                    given[arrival.donor] += size_of(arrival.parcel)
        except TransferError as error:
            self._tell_all(Damaged(why=str(error)))
            raise
        self._tell_all(Content(distrusted=sorted(self._distrusted)))
        write_back(self._own, self._tensors)
        self._protected.install(Inventory(self._tensors, tables[self._donors[0]].plain))
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

    def _table_of(self, donor: int) -> Contents:
        table = msgspec.msgpack.decode(self._mail.receive_text(donor), type=Contents)
        table.check(donor)
        return table

    def _plan_landing(self, tables: dict[int, Contents]) -> None:
        for donor, table in tables.items():
            reader = table.reader(self._host) if self._read_memory else None
            if reader is not None:
                self._readers[donor] = reader
            for line in table.lines:
                if self._needs(donor, line):
                    self._add(donor, line)

    def _needs(self, donor: int, line: Line) -> bool:
        """What belongs to no parameter (buffers, schedulers) may differ between replicas, and is taken from one: the
        first donor, or for buffers that it lacks the first that has them."""
        if line.unit:
            return self._wanted is None or line.unit in self._wanted
        if donor == self._donors[0]:
            return self._wanted is None or line.path in self._own or not line.path.startswith(PARAMETERS)
        return line.path in self._own and line.path not in self._tensors

    def _add(self, donor: int, line: Line) -> None:
        if line.path not in self._tensors:
            self._tensors[line.path] = landing_place(line, self._own.get(line.path))
            self._holders[line.path] = ()
        self._holders[line.path] += (donor,)
        self._addresses[donor, line.path] = line.address

    # -- one round ----------------------------------------------------------------------------------------------------

    def _fetch(self, parcels: list[tuple[Parcel, tuple[int, ...]]]) -> list[_Arrival]:
        """Order, receive and take digests. A second round is for parcels about which two holders differ."""
        read = len(self._readers) == len(self._donors)
        orders = place_orders(
            parcels, self._donors, spread=not read, vouchers=self._vouchers, distrusted=self._distrusted
        )
        self._vouchers = len(self._donors)  # for parcels that come a second time everybody is asked
        holders = dict(parcels)
        for donor, order in orders.items():
            self._mail.post_text(msgspec.msgpack.encode(_request(order, read)), donor)
        arrivals = [
            _Arrival(parcel, donor, holders[parcel]) for donor, order in orders.items() for parcel in order.give
        ]
        if read:
            self._read(arrivals)
        else:
            self._receive(arrivals)
        self._hear_digests(orders, arrivals)
        return arrivals

    def _receive(self, arrivals: list[_Arrival]) -> None:
        """Over the process group, from all donors in turns. A parcel's digest is taken at once, out of the
        processor's cache, while the next ones are on their way."""
        by_donor: dict[int, list[_Arrival]] = {}
        for arrival in arrivals:
            by_donor.setdefault(arrival.donor, []).append(arrival)
        lanes = [Lane(self._mail, donor, own, self._buffer_of) for donor, own in by_donor.items()]
        for one_turn in zip_longest(*lanes):
            for arrival, buffer in filter(None, one_turn):
                arrival.digest = digest_one(buffer)
                self._unpack(arrival.parcel, buffer)
                self._moved()

    def _read(self, arrivals: list[_Arrival]) -> None:
        """Chunks out of the giver's memory, on all cores: the others wait for us. Small tensors still come together."""
        self._receive([arrival for arrival in arrivals if len(arrival.parcel) > 1])
        chunks = [arrival for arrival in arrivals if len(arrival.parcel) == 1]

        def read(arrival: _Arrival) -> bytes:
            (part,) = arrival.parcel
            into = self._flat.slice_of(part)
            self._readers[arrival.donor].read(self._addresses[arrival.donor, part.path] + part.start, into)
            return digest_one(into)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for arrival, digest in zip(chunks, threads.map(read, chunks), strict=True):
                arrival.digest = digest
                self._moved()

    def _buffer_of(self, arrival: _Arrival) -> torch.Tensor:
        """Where a parcel lands: in its own storage if it is part of one tensor."""
        parcel = arrival.parcel
        if len(parcel) == 1:
            return self._flat.slice_of(parcel[0])
        return torch.empty(size_of(parcel), dtype=torch.uint8)

    def _unpack(self, parcel: Parcel, buffer: torch.Tensor) -> None:
        if len(parcel) == 1:
            return
        place = 0
        for part in parcel:
            self._flat.slice_of(part).copy_(buffer[place : place + part.length])
            place += part.length

    def _hear_digests(self, orders: dict[int, Order], arrivals: list[_Arrival]) -> None:
        by_parcel = {arrival.parcel: arrival for arrival in arrivals}
        for donor, order in orders.items():
            told = (*order.give, *order.vouch)
            digests = torch.empty(_DIGEST * len(told), dtype=torch.uint8)
            self._mail.receive(digests, donor)
            text = bytes(digests.numpy())
            for place, parcel in enumerate(told):
                by_parcel[parcel].told[donor] = text[_DIGEST * place : _DIGEST * (place + 1)]
            self._checked += len(told)

    def _judge(self, arrivals: list[_Arrival]) -> list[tuple[Parcel, tuple[int, ...]]]:
        """What has to be fetched again, from others."""
        again = []
        distrusted = set(self._distrusted)
        for arrival in arrivals:
            right, wrong = arrival.verdict()
            distrusted |= wrong
            if right:
                self._arrived[arrival.parcel] = arrival.digest
            else:
                again.append((arrival.parcel, arrival.holders))
        self._distrusted = frozenset(distrusted)
        return again

    def _digest(self) -> str:
        order = sorted(self._arrived, key=lambda parcel: (parcel[0].path, parcel[0].start))
        return digest_text(b"".join(self._arrived[parcel] for parcel in order))[:16]

    def _tell_all(self, word: Content | Damaged) -> None:
        for donor in self._donors:
            self._mail.post_text(msgspec.msgpack.encode(word), donor)


def _request(order: Order, read: bool) -> Request:
    def plain(parcels: list[Parcel]) -> list[list[tuple[str, int, int]]]:
        return [[(part.path, part.start, part.length) for part in parcel] for parcel in parcels]

    return Request(give=plain(order.give), vouch=plain(order.vouch), read=read)
