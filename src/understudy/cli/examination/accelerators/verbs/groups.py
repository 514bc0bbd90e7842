"""Groups of a rank, through the seam of families of communicators: making, connecting, using, breaking."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from understudy.cli.examination.accelerators.verbs.held import Held
from understudy.groups.connecting import Attempt
from understudy.groups.store import InterruptibleStore

_TIMEOUT = timedelta(minutes=5)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def make(held: Held, groups: list[str], rank: int, size: int, port: int) -> dict[str, Any]:
    """Backends without connections. Returns how this rank can be reached, by group."""
    assert held.family is not None
    held.rank = rank
    held.store = InterruptibleStore("127.0.0.1", port, lambda: False, _TIMEOUT)
    held.links = held.family.links(lambda _: True, lambda _: None)
    held.store.overheard = held.links.hear
    for group in groups:
        held.backends[group] = held.family.make(held.store, rank, list(range(size)), _TIMEOUT)
    return handles(held)


def handles(held: Held) -> dict[str, Any]:
    return {group: backend.get_reconfigure_handle() for group, backend in held.backends.items()}


def connect(held: Held, peers: dict[str, list[str]], unique: int) -> dict[str, Any]:
    """To those that showed these handles, group by group, as a regroup does it."""
    assert held.family is not None
    held.abandoned = False
    links = held.linked()
    for place, (group, known) in enumerate(peers.items()):
        with links.forming(group, fresh=place == 0):
            for handle in known:
                links.hear(handle.encode())
            backend = held.backends[group]
            links.hold(group, backend)
            Attempt(held.family, backend, unique + place, known, _TIMEOUT, held.where).wait(lambda: held.abandoned)
    return {}


def all_reduce(held: Held, groups: list[str], count: int, words: int, turns: int = 1) -> dict[str, Any]:
    """Queue sums over each of these groups, by turns, and an event behind them: of `count` tensors, or of one, `turns`
    times."""
    for group in groups:
        held.tensors[group] = []
    for _ in range(count):
        made = {group: torch.full((words,), held.rank + 1.0, device=held.where) for group in groups}
        for _ in range(turns):
            for group, tensor in made.items():
                held.backends[group].allreduce([tensor]).wait()
        for group, tensor in made.items():
            held.tensors[group].append(tensor)
    held.events = [held.taken().record()]
    return {}


def sums(held: Held, seconds: float = 30.0) -> dict[str, Any]:
    """By group: the sums that came, each with how often."""
    held.taken().drain(seconds)
    came: dict[str, dict[str, int]] = {}
    for group, tensors in held.tensors.items():
        counts = came.setdefault(group, {})
        for tensor in tensors:
            low, high = tensor.min().item(), tensor.max().item()
            name = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            counts[name] = counts.get(name, 0) + 1
    return {"sums": came}


def complete(held: Held) -> dict[str, Any]:
    return {"complete": all(event.complete() for event in held.events), "broken": held.linked().broken()}


def abandon(held: Held) -> dict[str, Any]:
    """As a control thread does: the flag first, then every communicator."""
    held.abandoned = True
    return {"broken": held.linked().break_all()}


def drain(held: Held, seconds: float) -> dict[str, Any]:
    held.taken().drain(seconds)
    return {}


def probe(held: Held, seconds: float) -> dict[str, Any]:
    held.taken().probe(seconds)
    return {}


def usage(held: Held) -> dict[str, Any]:
    """What could grow from round to round. Device memory: free bytes of the whole device, None where it has none of its
    own."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    free = torch.accelerator.get_memory_info(held.where)[0] if held.where.type != "cpu" else None
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident_bytes": resident,
        "free_device_bytes": free,
    }
