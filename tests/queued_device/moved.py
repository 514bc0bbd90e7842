"""One rank of three on the queued device: ranks 1 and 2 give their state to rank 0, in several scenes, and the
last one is cut short. Each writes what it saw. `python moved.py RANK SIZE PORT FOLDER`
"""

import functools
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.queued_device.struck import form
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.utils._python_dispatch import _disable_current_modes

from understudy.devices import in_use
from understudy.devices.memory import on_device
from understudy.errors import StepAbandoned, TransferError
from understudy.groups.device_fence import comes_to_its_end
from understudy.state.protected_state import Protected
from understudy.state.state_digests import BY_WORD_SUMS
from understudy.state.transfer.device_path import DevicePath
from understudy.state.transfer.p2p import Channel, DefaultGroup
from understudy.state.transfer.receiver import Receiver
from understudy.state.transfer.sender import Sender
from understudy_testkit.queued_device.installing import installed
from understudy_testkit.queued_device.plugins import EmulatedDevice

WIDE = 160  # a weight is larger than what is put together
LIMIT = timedelta(seconds=60)


class Words:
    """A gloo group beside that of the device."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, LIMIT)
        self.sent = 0

    def send(self, message: torch.Tensor, to: int, /) -> Any:
        self.sent += message.nbytes
        return self._group.send([message], to, 0)

    def receive(self, into: torch.Tensor, sender: int, /) -> Any:
        return self._group.recv([into], sender, 0)


class Damaging(DefaultGroup):
    def send(self, message: torch.Tensor, to: int, /) -> Any:
        with installed().used():
            message = message.clone()
            message[message.numel() // 2] ^= 4
        return super().send(message, to)


class Turned(nn.Module):
    """Its parameter is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, WIDE).t())


def build(seed: int, steps: int) -> Protected:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 8).bfloat16(), nn.BatchNorm1d(8), Turned())
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[3].parameters()], fused=True)
    for _ in range(steps):
        (model[0](torch.rand(2, WIDE)) @ model[3].weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for state in optimizer.state.values():  # as `step` of an optimizer that is not fused
            state["of_host"] = torch.frombuffer(bytearray(12), dtype=torch.float32)
    return Protected({"model": model}, {"optimizer": optimizer}, digests=BY_WORD_SUMS)


def train_on(protected: Protected) -> None:
    """A fused optimizer refuses state that is elsewhere."""
    (optimizer,) = protected.optimizers.values()
    protected.modules["model"][0](torch.rand(2, WIDE)).sum().backward()  # type: ignore[index]
    for state in optimizer.state.values():
        del state["of_host"]
    optimizer.step()


class Rank:
    def __init__(self, rank: int, words: Words) -> None:
        self.rank, self.words, self.channel = rank, words, Channel(words)

    def move(self, protected: Protected, path: DevicePath | None) -> None:
        with _disable_current_modes():
            if self.rank == 0:
                Receiver(self.channel, 0, protected, [1, 2], read_memory=False, path=path).run(lambda: None)
            else:
                units = {name: 1 + place for place, name in enumerate(protected.units())}
                sender = Sender(protected, units)
                sender.take_digests(path)
                sender.send_to(self.channel, 0, path)

    def scene(self, path: DevicePath | None, joiner_steps: int = 0, spoil: bool = False) -> dict[str, object]:
        protected = build(1, 3) if self.rank else build(2, joiner_steps)
        if spoil and self.rank == 1:
            with torch.no_grad():
                protected.modules["model"][0].weight[3, 3] += 1.0  # type: ignore[index]
        before = {name: tensor.data_ptr() for name, tensor in protected.inventory().tensors.items()}
        sent = self.words.sent
        try:
            self.move(protected, path)
        except (RuntimeError, StepAbandoned, TransferError) as trouble:
            return {"trouble": f"{type(trouble).__name__}: {trouble}"[:110]}
        tensors = protected.inventory().tensors
        told: dict[str, object] = {
            "digests": [protected.digest_parameters(), protected.digest_optimizer()],
            "in place": all(tensors[name].data_ptr() == place for name, place in before.items()),
            "of host": sorted({name.rpartition("/")[2] for name, tensor in tensors.items() if not on_device(tensor)}),
            "words": self.words.sent - sent,
            "state": sum(tensor.nbytes for tensor in tensors.values()),
        }
        train_on(protected)
        return told


def main() -> None:
    rank, size, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    kind = EmulatedDevice()
    where = kind.take(0)
    in_use.begin(kind)
    in_use.settle_by(lambda: kind.drain(None))
    store = PrefixStore("ours", TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group("queued", store=store, rank=rank, world_size=size, enable_reconfigure=True)
    assert dist.group.WORLD is not None
    backend = form(dist.group.WORLD, store, 1)

    def lost() -> bool:
        return bool(store.check(["rank 0 has given up"]))

    path = DevicePath(where, DefaultGroup(), functools.partial(comes_to_its_end, kind, lost))
    damaging = DevicePath(where, Damaging(), functools.partial(comes_to_its_end, kind, lost))
    one = Rank(rank, Words(PrefixStore("words", store), rank, size))
    seen = {
        "joiner": one.scene(path),
        "laggard": one.scene(path, joiner_steps=1),
        "a donor has no path": one.scene(None if rank == 2 else path),
        "damaged": one.scene(damaging if rank == 1 else path),
        "donors differ": one.scene(path, spoil=True),
        "contact lost": one.scene(DevicePath(where, DefaultGroup(), lambda: False) if rank == 0 else path),
    }
    if rank == 0:
        store.set("rank 0 has given up", "")
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    backend.abort()
    installed().stream.stop()
    os._exit(0)  # a backend that was aborted is not torn down


if __name__ == "__main__":
    main()
