"""Peer memory: copies of one rank's state in memory that outlives its process, in the agent's folder.

Two slots, of which the older one is overwritten, so that one whole copy is there at every moment. A copy is begun where
the next step begins, and taken in a thread while it computes: until its fence nothing changes but buffers, and those
are copied at once. A device copies beside what it computes, into memory that was pinned once.

A slot says itself whether it is whole: its header is written last, and every tensor has a digest. The process that gets
the rank next, if it is on this host, finds the slots by the rank's name. Slots of ranks of other hosts have the same
form, byte by byte (`replication`).
"""

import functools
import itertools
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
import xxhash

from understudy.devices import in_use
from understudy.devices.contract import Device
from understudy.devices.memory import to_device
from understudy.errors import TransferError, UnderstudyError
from understudy.state.digests import digest_one, tensor_bytes
from understudy.state.protected_state import Inventory, Protected

_HEADER = struct.Struct("<8sQQQ16s")  # magic, step, place and length of the table, digest of all that
HEADER_SIZE = _HEADER.size
NEWEST = 2  # copies of each rank that stay
_MAGIC = b"snapshot"
_DATA = 4096  # where the first tensor begins
_ALIGNED = 64
_CHUNK = 8 << 20
_LOOK_AGAIN_EVERY = 0.001  # seconds
_NOTHING = torch.empty(0, dtype=torch.uint8)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    path: str
    dtype: str
    shape: tuple[int, ...]
    place: int
    length: int
    digest: bytes
    of_device: bool = False


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[_Entry]
    plain: bytes


class Slot:
    """One file. A writer keeps it mapped; a reader maps it for as long as it reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._unpin: Callable[[], None] = _nothing

    def step(self) -> int | None:
        """Of the whole copy in it; None when there is none."""
        found = self._read_header()
        return None if found is None else found[0]

    def clear(self) -> None:
        """From here on until the next `write` is over there is nothing in it."""
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            file.write(bytes(_HEADER.size))

    def remove(self) -> None:
        self._drop_map()
        self._path.unlink(missing_ok=True)

    def write(self, step: int, inventory: Inventory) -> None:
        """OSError when there is not enough memory; then the slot is empty."""
        pairs = zip(inventory.tensors.values(), self._landings(inventory), strict=True)
        self._complete(step, inventory, [_copy(tensor, landing) for tensor, landing in pairs])

    def write_behind(self, step: int, inventory: Inventory, device: Device) -> Callable[[], None]:
        """Queue the copies of what is on the device. To be called then, in any thread: waits until they are there, and
        makes the slot whole."""
        landings = dict(zip(inventory.tensors, self._landings(inventory, device), strict=True))
        of_device = [path for path in inventory.tensors if path in inventory.of_device and len(landings[path])]
        copied = device.copy_to_host([(_flat(inventory.tensors[path]), landings[path]) for path in of_device])

        def finish() -> None:
            while not copied.complete():
                time.sleep(_LOOK_AGAIN_EVERY)
            self._complete(
                step,
                inventory,
                [
                    digest_one(landing) if path in inventory.of_device else _copy(inventory.tensors[path], landing)
                    for path, landing in landings.items()
                ],
            )

        return finish

    def _landings(self, inventory: Inventory, device: Device | None = None) -> list[torch.Tensor]:
        """Where each tensor goes, in bytes. From here on there is nothing in the slot. `device`: what copies there."""
        self.clear()
        lengths = [tensor.nbytes for tensor in inventory.tensors.values()]
        target = self._mapped(_DATA + sum(map(_aligned, lengths)), device)
        places = itertools.accumulate(map(_aligned, lengths), initial=_DATA)
        return [
            torch.frombuffer(target, dtype=torch.uint8, count=length, offset=place) if length else _NOTHING
            for length, place in zip(lengths, places, strict=False)
        ]

    def _complete(self, step: int, inventory: Inventory, digests: list[bytes]) -> None:
        """Every tensor is in its place."""
        entries, place = [], _DATA
        for (path, tensor), digest in zip(inventory.tensors.items(), digests, strict=True):
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape, of_device = tuple(tensor.shape), path in inventory.of_device
            entries.append(_Entry(path, dtype, shape, place, tensor.nbytes, digest, of_device))
            place += _aligned(tensor.nbytes)
        table = msgspec.msgpack.encode(_Table(entries=entries, plain=inventory.plain))
        with self._path.open("r+b") as file:
            file.seek(place)
            file.write(table)
            file.seek(0)
            file.write(_header(step, place, table))

    def header(self) -> bytes | None:
        """Of the whole copy in it. Slots with equal headers hold equal bytes."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            return file.read(HEADER_SIZE) if self.step() is not None else None
        return None

    def content(self) -> torch.Tensor:
        """Everything behind the header, as it is in the file."""
        header = self._read_header()
        if header is None:
            raise TransferError("there is no whole copy to send")
        with self._path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(content, dtype=torch.uint8, count=header[1] + header[2] - _DATA, offset=_DATA)

    def make_room(self, header: bytes) -> torch.Tensor:
        """For the content that belongs to `header`. OSError when there is not enough memory."""
        self.clear()
        magic, _, place, length, _ = _HEADER.unpack(header)
        if magic != _MAGIC or place < _DATA:
            raise TransferError("that is not the header of a copy")
        landing = self._mapped(place + length)
        return torch.frombuffer(landing, dtype=torch.uint8, count=place + length - _DATA, offset=_DATA)

    def seal(self, header: bytes) -> None:
        """All of its content is there. TransferError when it is not what `header` says, and then the slot is empty."""
        with self._path.open("r+b") as file:
            file.write(header)
        try:
            self.read(_HEADER.unpack(header)[1])
        except TransferError:
            self.clear()
            raise

    def _mapped(self, size: int, device: Device | None = None) -> mmap.mmap:
        """Memory is reserved first: to run out of it while writing would end the process."""
        if self._map is None or len(self._map) < size:
            self._drop_map()  # its memory goes when the last tensor in it goes
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
                self._map = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
            if device is not None:
                whole = torch.frombuffer(self._map, dtype=torch.uint8)
                device.pin(whole)
                self._unpin = functools.partial(device.unpin, whole)
        return self._map

    def _drop_map(self) -> None:
        unpin, self._unpin = self._unpin, _nothing
        unpin()
        self._map = None

    def read(self, step: int) -> Inventory:
        """The copy of that state, checked. TransferError when it is not there or not whole."""
        header = self._read_header()
        if header is None or header[0] != step:
            raise TransferError(f"there is no saved copy of the state before step {step}")
        with self._path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        table = msgspec.msgpack.decode(content[header[1] : header[1] + header[2]], type=_Table)
        tensors = {}
        for entry in table.entries:
            tensors[entry.path] = tensor = _tensor(content, entry)
            if xxhash.xxh3_128_digest(tensor_bytes(tensor)) != entry.digest:
                raise TransferError(f"the saved copy of {entry.path} before step {step} is damaged")
        return Inventory(tensors, table.plain, frozenset(entry.path for entry in table.entries if entry.of_device))

    def _read_header(self) -> tuple[int, int, int] | None:
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEADER.size)
                if len(head) < _HEADER.size:
                    return None
                magic, step, place, length, _ = _HEADER.unpack(head)
                if magic != _MAGIC:
                    return None
                file.seek(place)
                return (step, place, length) if head == _header(step, place, file.read(length)) else None
        except FileNotFoundError:
            return None


def _header(step: int, place: int, table: bytes) -> bytes:
    digest = xxhash.xxh3_128_digest(struct.pack("<QQQ", step, place, len(table)) + table)
    return _HEADER.pack(_MAGIC, step, place, len(table), digest)


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _copy(tensor: torch.Tensor, landing: torch.Tensor) -> bytes:
    """In chunks, each digested while it is still in the cache."""
    digest = xxhash.xxh3_128()
    if tensor.nbytes:
        source = _flat(tensor)
        for start in range(0, tensor.nbytes, _CHUNK):
            piece = landing[start : start + _CHUNK]
            piece.copy_(source[start : start + _CHUNK])
            digest.update(tensor_bytes(piece))
    return digest.digest()


def _nothing() -> None:
    return


def _tensor(content: mmap.mmap, entry: _Entry) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TransferError(f"{entry.path} has the unknown type {entry.dtype}")
    if not entry.length:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(content, dtype=torch.uint8, count=entry.length, offset=entry.place)
    return flat.view(dtype).reshape(entry.shape)


def slots_of(folder: str, world: int, rank: int) -> list[Slot]:
    """For the newest copies, and one more that only the rank itself uses, while it holds an older one."""
    return [Slot(Path(folder) / f"snapshot-{world}-{rank}-{number}") for number in range(NEWEST + 1)]


def older(slots: list[Slot]) -> Slot:
    return min(slots, key=lambda slot: -1 if (step := slot.step()) is None else step)


def read_from(slots: list[Slot], step: int) -> Inventory:
    for slot in slots:
        if slot.step() == step:
            return slot.read(step)
    raise TransferError(f"there is no copy of the state before step {step}")


def clear_after(slots: list[Slot], step: int) -> None:
    for slot in slots:
        if (slot.step() or 0) > step:
            slot.clear()


class Snapshots:
    """Of one rank, every so many steps (`every`; 0 is never). Two copies; and a third while an older one is held.
    `device`: one that runs behind its host copies by itself, behind what is queued, and nothing waits for it before
    `finish`."""

    def __init__(self, folder: str, world: int, rank: int, every: int, device: Device | None = None) -> None:
        self.every, self._device = every, device
        self.slots = slots_of(folder, world, rank)
        self._held: int | None = None
        self._writing: threading.Thread | None = None
        self._trouble: str | None = None

    def due(self, holds: int) -> bool:
        return self.every > 0 and holds % self.every == 0

    def begin(self, protected: Protected, holds: int, then: Callable[[Slot], None] = lambda _: None) -> None:
        """Copy the present state in a thread. It must not change before `finish`, but for its buffers. `then`: what is
        done with the slot afterwards, in the same thread."""
        try:
            inventory = protected.inventory(settled=self._device is None)
        except (OSError, RuntimeError) as error:  # of a script's own save function, which writes to a disk
            self._trouble = f"{type(error).__name__}: {error}"
            return
        changing = protected.changed_before_fence(inventory)
        tensors = {path: tensor.clone() if path in changing else tensor for path, tensor in inventory.tensors.items()}
        whole = Inventory(tensors, inventory.plain, inventory.of_device)
        if self._device is None:
            self._start(self._write, whole, holds, then)
        else:
            self._begin_behind(self._device, whole, holds, then)

    def _begin_behind(self, device: Device, whole: Inventory, holds: int, then: Callable[[Slot], None]) -> None:
        slot = self._next_slot()
        try:
            finish = slot.write_behind(holds, whole, device)
        except (OSError, ValueError, RuntimeError) as error:
            self._trouble = f"{type(error).__name__}: {error}"
        else:
            self._start(self._finish_slot, slot, finish, then)

    def begin_again(self, protected: Protected, holds: int, then: Callable[[Slot], None]) -> None:
        """If that state is saved already, only `then` is done."""
        self.finish()
        slot = next((slot for slot in self.slots if slot.step() == holds), None)
        if slot is None:
            self.begin(protected, holds, then)
        else:
            self._start(then, slot)

    def _start(self, act: Callable[..., None], *arguments: object) -> None:
        self._writing = threading.Thread(target=act, args=arguments, name="understudy-save", daemon=True)
        self._writing.start()

    def _write(self, inventory: Inventory, holds: int, then: Callable[[Slot], None]) -> None:
        slot = self._next_slot()
        self._finish_slot(slot, lambda: slot.write(holds, inventory), then)

    def _finish_slot(self, slot: Slot, finish: Callable[[], None], then: Callable[[Slot], None]) -> None:
        try:
            finish()
        except (OSError, ValueError, RuntimeError, UnderstudyError) as error:
            self._trouble = f"{type(error).__name__}: {error}"
        else:
            then(slot)

    def _next_slot(self) -> Slot:
        """For the next copy: an empty one as long as there are not two beside the one that is held."""
        copies = self._copies()
        free = sorted(step for step in copies if step != self._held)
        if len(free) < NEWEST:
            return next(slot for slot in self.slots if slot not in copies.values())
        return copies[free[0]]

    def _copies(self) -> dict[int, Slot]:
        return {step: slot for slot in self.slots if (step := slot.step()) is not None}

    def hold(self, step: int) -> None:
        """Keep the newest copy that is older than the state before `step`, whatever is saved from now on."""
        steps = self.steps()
        self._held = max((one for one in steps if one < step), default=max(steps, default=None))

    def release(self) -> None:
        """Two copies are enough again."""
        self.finish()
        self._held = None
        copies = self._copies()
        for step in sorted(copies)[:-NEWEST]:
            copies[step].remove()

    def finish(self) -> str | None:
        """Wait until the copy that was begun is whole. Returns what went wrong with it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        trouble, self._trouble = self._trouble, None
        return trouble

    def steps(self) -> tuple[int, ...]:
        """States of which there is a whole copy, also when another process has saved them."""
        self.finish()
        return tuple(sorted(step for slot in self.slots if (step := slot.step()) is not None))

    def read(self, step: int) -> Inventory:
        return read_from(self.slots, step)

    def stop(self) -> None:
        """No rank needs copies of this one."""
        self.every = 0
        self.remove()

    def remove(self) -> None:
        self.finish()
        for slot in self.slots:
            slot.remove()

    def forget_after(self, step: int) -> None:
        """All ranks have gone back to `step`: what was saved of later ones is void."""
        self.finish()
        clear_after(self.slots, step)


def bring_back(protected: Protected, copy: Inventory) -> None:
    """Put a copy in the place of the present state. It stays a copy."""
    own = protected.inventory().tensors
    restored = dict(_restored(own, copy))
    in_use.settle()  # from here on it is said to be there
    protected.install(Inventory(restored, copy.plain))


def _restored(own: dict[str, torch.Tensor], copy: Inventory) -> Iterator[tuple[str, torch.Tensor]]:
    for path, tensor in copy.tensors.items():
        present = own.get(path)
        if present is not None and present.shape == tensor.shape and present.dtype == tensor.dtype:
            yield path, present.copy_(tensor)
        else:
            copied = tensor.clone()
            yield path, to_device(copied) if path in copy.of_device else copied
