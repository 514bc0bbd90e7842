"""Where a rank stands, in one phrase, from the calls of its main thread. Pure: stacks in, words out.

The innermost call that we have a word for decides. What runs below Python (the inside of a backward pass, a kernel)
cannot be seen; only of DDP's wait for gradients the worker knows by itself.
"""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.wire.messages import Frame, Stacks

_RECOVERY = ("await_plan", "await_abandonment", "await_verdict", "carry_out")
_LIBRARIES = (
    *("/torch/", "/torchdata/", "/site-packages/", "/lib/python3"),
    *("/understudy/training/", "/understudy/groups/", "/understudy/state/"),
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A call in this file means: it is there. No functions: any. `what` may name the function."""

    file: str
    what: str
    functions: tuple[str, ...] = ()


_SIGNS = (
    Sign("/torch/distributed/distributed_c10d.py", "in {function}"),
    Sign("/torch/distributed/_functional_collectives.py", "in {function}"),
    Sign("/torch/distributed/checkpoint/", "saving or loading a checkpoint"),
    Sign("/torch/serialization.py", "saving or loading a checkpoint"),
    Sign("/torch/distributed/fsdp/", "in FSDP (collecting or spreading shards)"),
    Sign("/torch/distributed/pipelining/", "in a pipeline schedule"),
    Sign("/torch/autograd/graph.py", "in backward", ("_engine_run_backward",)),
    Sign("/torch/autograd/__init__.py", "in backward", ("backward", "grad")),
    Sign("/torch/_tensor.py", "in backward", ("backward",)),
    Sign("/torch/utils/data/", "in the data loader"),
    Sign("/torchdata/", "in the data loader"),
    Sign("/understudy/training/data/step_data.py", "in the data loader"),
    Sign("/understudy/training/data/stateful_loader.py", "in the data loader"),
    Sign("/understudy/training/data/step_loader.py", "in the data loader"),
    Sign("/understudy/training/data/task_loader.py", "in the data loader"),
    Sign("/understudy/training/data/sampler_order.py", "in the data loader"),
    Sign("/torch/optim/", "in the optimizer"),
    Sign("/torch/nn/modules/module.py", "in forward"),
)
_WAITS = (
    *(
        "/torch/distributed/distributed_c10d.py",
        "/torch/distributed/_functional_collectives",
        "/torch/distributed/fsdp/",
    ),
    *("/torch/distributed/pipelining/", "/torch/distributed/tensor/", "/torch/distributed/utils.py"),
    *("/torch/nn/parallel/distributed.py", "/understudy/groups/fence.py", "/understudy/groups/store.py"),
    *("/understudy/groups/world.py", "/understudy/training/control.py", "/understudy/state/transfer/p2p.py"),
)
"""Files whose code, when it is what runs, mostly waits for other ranks."""
_DEVICE_FENCES = ("/understudy/groups/device_fence.py", "/understudy/groups/device_side_fence.py")
_ASKS_WITHIN = 8  # they ask again and again whether contact is lost, some calls below them
_FENCES = ("/understudy/groups/fence.py", *_DEVICE_FENCES)
_MEETS = ("meet", "await_flag")
_INNERMOST = 4  # calls that are looked at: decorators and dispatchers lie between a collective and its caller
_PASSED_BY = ("wrapper", "inner", "wrapped_func", "decorate_context", "_fn")  # decorators between a call and its caller


def place_of(frames: Sequence[Frame], *, step: int, in_gradient_wait: bool = False) -> str:
    """`frames`: of the main thread, the innermost first. `step`: the one that its progress page shows."""
    if not frames:
        return "in no Python code"
    if any(frame.function in _MEETS and any(_is_in(frame, fence) for fence in _FENCES) for frame in frames):
        return f"at the fence of step {step}"
    if any(_is_in(frame, "/understudy/training/") and frame.function in _RECOVERY for frame in frames):
        return "in a recovery, waiting for word from the coordinator"
    caller = next((frame for frame in frames if not _is_library(frame)), None)
    what = _first_sign(frames)
    if what == "in backward" and in_gradient_wait:
        what = "in backward (gradient synchronisation)"
    if caller is None:
        return what or f"in {_named(frames[0])}"
    if what is None:
        return f"in {_named(caller)}"
    if caller is frames[0]:  # the script's own code is what runs
        return f"in {_named(caller)} ({what.removeprefix('in ')})" if what != "in forward" else f"in {_named(caller)}"
    return f"{what}, called from {_at(caller)}"


def is_waiting(frames: Sequence[Frame], in_gradient_wait: bool = False) -> bool:
    """Does the main thread wait for other ranks, or for the coordinator? One that waits for its device at the fence
    waits for others as well: what is in front of the fence there is a collective. If it is the device itself that
    stands, all ranks wait, their groups are broken, and a queue that does not drain then ends its process."""
    if in_gradient_wait or any(_is_in(frame, part) for frame in frames[:_INNERMOST] for part in _WAITS):
        return True
    return any(_is_in(frame, fence) for frame in frames[:_ASKS_WITHIN] for fence in _DEVICE_FENCES)


def _first_sign(frames: Sequence[Frame]) -> str | None:
    for place, frame in enumerate(frames):
        for sign in _SIGNS:
            if sign.file in frame.file and (not sign.functions or frame.function in sign.functions):
                return sign.what.format(function=_outermost(frames[place:], sign))
    return None


def _outermost(frames: Sequence[Frame], sign: Sign) -> str:
    """`broadcast_object_list` calls `broadcast`: the name that the caller used says more."""
    name = frames[0].function
    for frame in frames:
        if sign.file in frame.file and frame.function not in _PASSED_BY:
            name = frame.function
        elif sign.file not in frame.file and frame.function not in _PASSED_BY:
            break
    return name


def _is_in(frame: Frame, part: str) -> bool:
    return part in frame.file


def _is_library(frame: Frame) -> bool:
    return frame.file.startswith("<") or any(part in frame.file for part in _LIBRARIES)


def _named(frame: Frame) -> str:
    return f"{frame.function} at {_at(frame)}"


def _at(frame: Frame) -> str:
    return f"{os.path.basename(frame.file)}:{frame.line}"


# -- for people -------------------------------------------------------------------------------------------------------


def grouped(places: Mapping[int, str]) -> list[str]:
    """One line per group of ranks that are in the same place, the largest group first."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(places):
        groups.setdefault(places[rank], []).append(rank)
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    return [f"{ranks_text(ranks)}: {place}" for place, ranks in largest_first]


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-5, 7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"


def full_text(title: str, stacks: Stacks) -> str:
    """All threads, as Python prints tracebacks: the innermost call last."""
    lines = [title]
    for thread in stacks.threads:
        lines.append(f"  {thread.name}:")
        lines += [f'    File "{call.file}", line {call.line}, in {call.function}' for call in reversed(thread.frames)]
    return "\n".join(lines) + "\n"
