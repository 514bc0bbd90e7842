"""One rank of two: talks in the ways that torch offers, trains with DDP, and rank 1 is killed while its queue stands.

Rank 0 writes what it saw. `python struck.py RANK SIZE PORT FOLDER`
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ReconfigureOptions, Store, TCPStore
from torch.nn.parallel import DistributedDataParallel

from understudy_testkit import queued_device

STANDS = 0.5  # seconds
LIMIT = 60.0


def form(group: dist.ProcessGroup, store: Store, unique: int) -> Any:
    """As a regroup does it: handles through the store, then all at once."""
    backend = group._get_backend(torch.device("cpu"))
    rank, name = group.rank(), group.group_name
    store.set(f"{name}/{unique}/{rank}", backend.get_reconfigure_handle())
    handles = [store.get(f"{name}/{unique}/{peer}").decode() for peer in range(group.size())]
    options = ReconfigureOptions()
    options.uuid, options.handles, options.timeout = unique, handles, timedelta(seconds=LIMIT)
    backend.reconfigure(options).wait()
    return backend


def talk(rank: int) -> dict[str, object]:
    """Everything is read by what waits for the queue."""
    peer = 1 - rank
    objects: list[Any] = [{"of": rank}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, ("rank", rank))
    sent, received = torch.full((3,), float(rank)), torch.zeros(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)])
    for work in works:
        work.wait()
    averaged = torch.full((2,), float(rank))
    dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
    parts = torch.zeros(4)
    dist.all_gather_into_tensor(parts, torch.full((2,), float(rank)))
    dist.barrier()
    return {
        "objects": objects,
        "gathered": gathered,
        "received": received.cpu().tolist(),
        "averaged": averaged.cpu().tolist(),
        "parts": parts.cpu().tolist(),
    }


def main() -> None:
    rank, size, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    device = queued_device.install()
    store = PrefixStore("ours", TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group("queued", store=store, rank=rank, world_size=size, enable_reconfigure=True)
    assert dist.group.WORLD is not None
    backend = form(dist.group.WORLD, store, 1)
    told = talk(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
        assert device.drain(LIMIT)  # the fence
        optimizer.step()
        optimizer.zero_grad()
    weight = model.module.weight
    before = device.fetch(weight.detach())
    store.set(f"ready/{rank}", "")
    if rank == 1:
        store.wait(["ready/0"])
        with device.held():
            model(torch.randn(4, 8)).square().mean().backward()
            os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(4, 8)).square().mean().backward()
    assert weight.grad is not None
    unfenced = weight.detach() - weight.grad  # an optimizer that is launched behind the collective
    event = device.record_event()
    told["stands"] = not device.drain(STANDS) and not device.query(event)
    told["error before"] = str(backend.get_error())
    backend.abort()
    told["freed"] = device.drain(LIMIT)
    told["error after"] = str(backend.get_error())
    told["probe"] = device.probe(LIMIT)
    told["fenced is whole"] = bool(torch.equal(device.fetch(weight.detach()), before))
    told["unfenced is damaged"] = bool((device.fetch(unfenced).abs() > 1e10).all())
    (folder / "seen.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
