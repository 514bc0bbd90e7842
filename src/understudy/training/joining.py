"""`join()`: this process becomes a member of the job, or runs without protection.

A spare waits here, warm, until it is given a rank. What this version can protect is checked before anything is built on
it: torch 2.15, on CPUs, with gloo or a family of communicators that another package brings. Groups are re-formed in
place with functions of torch that are not public, and blocked collectives are freed by breaking their connections. With
another torch, or on an accelerator, that would fail at the first fault instead of now.
"""

import sys
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from understudy.detection.progress import Place, ProgressWriter
from understudy.errors import UsageError
from understudy.foundation.settings import PlainSettings, WorkerSettings, publish_rank
from understudy.groups.communicators import CommunicatorFamily
from understudy.groups.store import InterruptibleStore
from understudy.groups.world import World
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR
from understudy.protocol.commands import AssignRank
from understudy.training import fork_server
from understudy.training.control import ControlLine
from understudy.training.job import Job
from understudy.training.member import make_member
from understudy.training.rng import seed_all
from understudy.training.script_errors import ScriptErrors, report_error
from understudy.training.status import MemberStatus
from understudy.training.warmup import prefault, warm_up

_USUAL_BACKEND = "gloo"
_TORCH = (2, 15)
_SPARE_PATIENCE = 0.3  # a founding member is told its rank at once; a process that waits longer than this is a spare


def join(
    *,
    backend: str | None = None,
    seed: int = 0,
    rng: Literal["derived", "tracked"] = "derived",
    timeout: timedelta = timedelta(minutes=30),
) -> Job:
    """Become a member of the job and initialise torch.distributed. A spare waits here until it is given a rank.

    `rng`: "derived" seeds every step from (seed, step, rank); "tracked" leaves the streams to the script and ships
    them with the rank.
    """
    if rng not in ("derived", "tracked"):
        raise UsageError(f'join(rng={rng!r}): it can be "derived" or "tracked"')
    tracked = rng == "tracked"
    settings = WorkerSettings.from_environment()
    if settings is None:
        return _join_plain(backend, seed, tracked, timeout)
    fork_server.start_again_if_unlike_the_others()
    try:
        if dist.is_initialized():
            raise UsageError(
                "torch.distributed is initialised already: understudy.join() makes the default process group; remove "
                "your own call of init_process_group"
            )
        family = check_supported(backend)
    except UsageError as error:
        _report_before_joining(settings, error)
        raise
    return _join_protected(settings, family, seed, tracked, timeout)


def _report_before_joining(settings: WorkerSettings, error: UsageError) -> None:
    """There is no member yet that could say why it ends."""
    control = ControlLine(settings.socket, settings.member, settings.token)
    report_error(control, error, None, repeats=True)


def _join_plain(backend: str | None, seed: int, tracked: bool, timeout: timedelta) -> Job:
    plain = PlainSettings.from_environment()
    device = _device(plain.local_rank)
    if not dist.is_initialized():
        chosen = backend or _backend_for(device)
        if plain.launched:
            dist.init_process_group(chosen, timeout=timeout)
        else:
            dist.init_process_group(chosen, rank=0, world_size=1, store=HashStore(), timeout=timeout)
    seed_all(seed)
    return Job(
        rank=dist.get_rank(),
        local_rank=plain.local_rank,
        world_size=dist.get_world_size(),
        seed=seed,
        tracked=tracked,
        device=device,
        member=None,
    )


def _join_protected(
    settings: WorkerSettings, family: CommunicatorFamily, seed: int, tracked: bool, timeout: timedelta
) -> Job:
    progress = ProgressWriter(settings.progress_file)
    control = ControlLine(settings.socket, settings.member, settings.token)
    assignment = control.await_assignment(_SPARE_PATIENCE) or _wait_as_spare(control, progress)
    progress.show(assignment.generation, -1, Place.SETUP)
    store_host, store_port = _store_of(assignment, settings)
    publish_rank(
        assignment.rank,
        assignment.slot,
        assignment.world_size,
        assignment.local_world_size,
        store_host,
        store_port,
    )
    device = _device(assignment.slot)
    status = MemberStatus(control, progress)
    world = World(
        family=family,
        rank=assignment.rank,
        size=assignment.world_size,
        founded_in=assignment.founded_in,
        store=InterruptibleStore(store_host, store_port, lambda: status.interrupted, timeout),
        abandoned=lambda: status.interrupted,
        timeout=timeout,
        device=device,
        formed=control.hand_over,
    )
    member = make_member(settings, control, status, world, tracked=tracked)
    if status.joiner:
        world.enter_sandbox(member.replicas.inherit())
    else:
        world.found()
    seed_all(seed)
    _report_uncaught_errors(member.errors)
    return Job(
        rank=assignment.rank,
        local_rank=assignment.slot,
        world_size=assignment.world_size,
        seed=seed,
        tracked=tracked,
        device=device,
        member=member,
    )


def _store_of(assignment: AssignRank, settings: WorkerSettings) -> tuple[str, int]:
    if not assignment.store_address:
        return settings.store_host, settings.store_port
    host, _, port = assignment.store_address.rpartition(":")
    return host, int(port)


def _report_uncaught_errors(errors: ScriptErrors) -> None:
    """An error outside the steps is the script's own as well; its traceback is shown as always."""
    show = sys.excepthook

    def report_and_show(kind: Any, error: BaseException, trace: Any) -> None:
        errors.report(error, None)
        show(kind, error, trace)

    sys.excepthook = report_and_show


def _wait_as_spare(control: ControlLine, progress: ProgressWriter) -> AssignRank:
    """Get warm, then sleep without using the CPU until a rank is given to us."""
    warm_up()
    progress.show(0, -1, Place.PARKED)
    control.say_parked()
    ready = 0
    while (assignment := control.await_assignment_or_wish(ready)) is None:
        ready = control.wanted_memory
        prefault(ready)
    return assignment


def _device(local_rank: int) -> torch.device:
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def _backend_for(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def check_supported(backend: str | None) -> CommunicatorFamily:
    """What makes the backends of the process groups. UsageError when a fault could not be recovered here."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version != _TORCH:
        wanted = ".".join(map(str, _TORCH))
        raise UsageError(
            f"torch {torch.__version__} is installed, and this version of Understudy works with torch {wanted} only: "
            f"pip install 'torch=={wanted}.*'. Without protection the script runs under torchrun as it is"
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        raise UsageError(
            f"this process sees an accelerator ({accelerator.type}), and Understudy cannot protect training on one "
            "yet: nothing could be recovered. Run the script under torchrun instead, or hide the devices "
            "(CUDA_VISIBLE_DEVICES='') to train on the CPU"
        )
    family: CommunicatorFamily = registry.named(COMMUNICATOR, backend or _USUAL_BACKEND, f"join(backend={backend!r})")
    return family
