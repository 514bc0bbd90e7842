"""One rank: trains small networks in many ways, on gloo first and then on the queued device, and writes digests of what
it holds. `python alike.py RANK SIZE PORT FOLDER WAY...`"""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.tensor import DTensor

from understudy.state.protected_state import local
from understudy_testkit import queued_device
from understudy_testkit.faults import parallelisms
from understudy_testkit.faults.parallelisms import Trained

WIDTH = 32
STEPS = 4
WAYS: dict[str, Callable[[torch.nn.Sequential], Trained]] = {
    "ddp": parallelisms.ddp,
    "ddp-bucket-views": lambda bare: parallelisms.ddp(bare, fast=True),
    "ddp-static": parallelisms.ddp_static,
    "fsdp": parallelisms.fsdp,
    "hsdp": parallelisms.hsdp,
    "tp-dp": parallelisms.tensor_and_data,
    "fsdp-tp": parallelisms.sharded_and_tensor,
    "ep-dp": lambda bare: parallelisms.experts_and_data(bare, WIDTH),
    "pp-gpipe": lambda bare: parallelisms.pipeline_and_data(bare, "gpipe"),
    "pp-1f1b": lambda bare: parallelisms.pipeline_and_data(bare, "1f1b"),
}

WAIT = {"ddp-static"}  # DDP asks for an entry of a table in its backward, which on a GPU is the host's own


def train(way: str) -> tuple[str, int]:
    """The digest, and by how many operations the host was ahead at the end. It does the last step while the queue
    stands still."""
    torch.manual_seed(7)
    blocks = torch.nn.Sequential(*[parallelisms.Block(WIDTH) for _ in range(3)])
    trained = WAYS[way](torch.nn.Sequential(blocks, torch.nn.Linear(WIDTH, WIDTH)))
    torch.manual_seed(100 + trained.share[0])
    make = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9) if way == "ddp-static" else torch.optim.AdamW
    parameters = list(trained.model.parameters())
    split = [each for each in parameters if isinstance(each, DTensor)]
    whole = [each for each in parameters if not isinstance(each, DTensor)]
    groups = [{"params": each} for each in (split, whole) if each]  # a fused optimizer takes one kind at a time
    optimizer = make(groups, fused=True)

    def step() -> None:
        trained.run(torch.randn(4, WIDTH))
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS):
        step()
    behind = 0
    if queued_device.is_installed() and way not in WAIT:
        with queued_device.installed().held():
            step()
            behind = queued_device.installed().stream.behind
    else:
        step()
    digest = hashlib.sha256()
    for parameter in trained.model.parameters():
        digest.update(local(parameter).detach().cpu().numpy().tobytes())
    return digest.hexdigest(), behind


def main() -> None:
    rank, size, port, folder, *ways = sys.argv[1:]
    torch.set_num_threads(1)
    told: dict[str, dict[str, object]] = {}
    for backend in ("gloo", "queued"):
        if backend == "queued":
            queued_device.install()
        store = PrefixStore(backend, TCPStore("127.0.0.1", int(port), is_master=False))
        dist.init_process_group(backend, store=store, rank=int(rank), world_size=int(size))
        trained = {way: train(way) for way in ways}
        told[backend] = {way: digest for way, (digest, _) in trained.items()}
        told["ahead"] = {way: behind for way, (_, behind) in trained.items()}
        dist.barrier()
        dist.destroy_process_group()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
