"""`join()`: this process becomes a member of the job, or runs without protection.

A spare waits here, warm, until it is given a rank. What this version can protect is checked before anything is built on
it: torch 2.15, on CPUs with gloo, or with a family of communicators that was asked for by name and the device that it
names. Groups are re-formed in place with functions of torch that are not public; with another torch, or on a device of
which nothing is known, that would fail at the first fault instead of now.
"""

import gc
import sys
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from understudy.detection.progress import Place, ProgressWriter
from understudy.devices import choosing, in_use
from understudy.devices.contract import Device
from understudy.devices.deciding import DecidingDevice
from understudy.errors import UsageError
from understudy.foundation import settings as environment
from understudy.foundation.settings import PlainSettings, WorkerSettings, publish_rank
from understudy.groups.families.contract import CommunicatorFamily
from understudy.groups.store import InterruptibleStore
from understudy.groups.world import World
from understudy.plugins import registry
from understudy.plugins.kinds import COMMUNICATOR, DEVICE
from understudy.protocol.commands import AssignRank
from understudy.training import device_view, fork_server
from understudy.training.control import ControlLine
from understudy.training.job import Job
from understudy.training.member import Member, make_member
from understudy.training.rng import seed_all
from understudy.training.script_errors import report_error, show_crashes
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
    fence: Literal["host", "device"] = "host",
    timeout: timedelta = timedelta(minutes=30),
) -> Job:
    """Become a member of the job and initialise torch.distributed. A spare waits here until it is given a rank.

    `rng`: "derived" seeds every step from (seed, step, rank); "tracked" leaves the streams to the script and ships
    them with the rank.

    `fence`: where the ranks wait for each other before an optimizer changes state, on a device that runs behind its
    host. "host": the host waits. "device": the host runs ahead, and the device decides; for plain DDP with fused
    optimizers only (docs/queued-device.md has what speaks against it), and untested on real devices.
    """
    if fence not in ("host", "device"):
        raise UsageError(f'join(fence={fence!r}): it can be "host" or "device"')
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
        family, device = choose_supported(backend)
        if fence == "device":
            require_deciding(device)
    except UsageError as error:
        _report_before_joining(settings, error)
        raise
    return _join_protected(settings, family, device, seed, tracked, timeout, device_decides=fence == "device")


def _report_before_joining(settings: WorkerSettings, error: UsageError) -> None:
    """There is no member yet that could say why it ends."""
    control = ControlLine(settings.socket, settings.member, settings.token)
    report_error(control, error, None, repeats=True)


def _join_plain(backend: str | None, seed: int, tracked: bool, timeout: timedelta) -> Job:
    plain = PlainSettings.from_environment()
    usual = choosing.usual()
    in_use.begin(usual)
    device = usual.take(plain.local_rank)
    if not dist.is_initialized():
        chosen = backend or _family_on(usual).backend
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
    settings: WorkerSettings,
    family: CommunicatorFamily,
    kind: Device,
    seed: int,
    tracked: bool,
    timeout: timedelta,
    *,
    device_decides: bool,
) -> Job:
    show_crashes()
    progress = ProgressWriter(settings.progress_file)
    control = ControlLine(settings.socket, settings.member, settings.token)
    assignment = control.await_assignment(_SPARE_PATIENCE)
    try:
        if assignment is None:
            device_view.require_open(kind, settings)
            assignment = _wait_as_spare(control, progress)
        device_view.settle(kind, settings, assignment)
    except UsageError as error:
        report_error(control, error, None, repeats=True)
        raise
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
    in_use.begin(kind)
    device = kind.take(assignment.slot)
    environment.set_for_the_engine(family.variables)
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
    member = make_member(settings, control, status, world, kind, tracked=tracked, device_decides=device_decides)
    if status.joiner:
        world.enter_sandbox(member.replicas.inherit())
    else:
        world.found()
    seed_all(seed)
    _report_uncaught_errors(member)
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


def _report_uncaught_errors(member: Member) -> None:
    """An error outside the steps is the script's own as well; its traceback is shown as always."""
    show = sys.excepthook

    def report_and_show(kind: Any, error: BaseException, trace: Any) -> None:
        member.contact.look_at(error)
        member.errors.report(error, None)
        show(kind, error, trace)

    sys.excepthook = report_and_show


def _wait_as_spare(control: ControlLine, progress: ProgressWriter) -> AssignRank:
    """Get warm, then sleep without using the CPU until a rank is given to us."""
    warm_up()
    gc.collect()  # else a full collection comes when it likes: in the midst of a recovery it took 0.3 s of a rehearsal
    progress.show(0, -1, Place.PARKED)
    control.say_parked()
    ready = 0
    while (assignment := control.await_assignment_or_wish(ready)) is None:
        ready = control.wanted_memory
        prefault(ready)
    return assignment


def _family_on(device: Device) -> CommunicatorFamily:
    """Ours for it."""
    families: list[CommunicatorFamily] = list(registry.ours(COMMUNICATOR).values())
    return next(family for family in families if family.device == device.name)


def choose_supported(backend: str | None) -> tuple[CommunicatorFamily, Device]:
    """What makes the backends of the process groups, and what their tensors are on. UsageError when a fault could not
    be recovered here."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version != _TORCH:
        wanted = ".".join(map(str, _TORCH))
        raise UsageError(
            f"torch {torch.__version__} is installed, and this version of Understudy works with torch {wanted} only: "
            f"pip install 'torch=={wanted}.*'. Without protection the script runs under torchrun as it is"
        )
    flag = f"join(backend={backend!r})"
    family: CommunicatorFamily = registry.named(COMMUNICATOR, backend or _USUAL_BACKEND, flag)
    device: Device = registry.named(DEVICE, family.device, flag)
    if not device.asynchronous:
        _refuse_accelerator(family)
    if not device.present():
        raise UsageError(f"{flag}: it is for the device {device.name}, and this process sees none")
    values = environment.of_the_engine()
    objection = device.objection(values) or family.objection(values)
    if objection is not None:
        raise UsageError(f"{flag}: {objection}")
    return family, device


def require_deciding(device: Device) -> None:
    """UsageError if only the host can wait at the fence."""
    flag = 'join(fence="device")'
    if not device.asynchronous:
        raise UsageError(f"{flag}: {device.name} is never behind its host, so that there is nothing to run ahead of")
    if not isinstance(device, DecidingDevice):
        raise UsageError(f"{flag}: the device {device.name} cannot decide at the fence (understudy.devices.deciding)")


def _refuse_accelerator(family: CommunicatorFamily) -> None:
    """What the script puts on one would not be waited for."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        raise UsageError(
            f"this process sees an accelerator ({accelerator.type}), and {family.backend} protects training on the CPU "
            "only: on an accelerator nothing could be recovered. Run the script under torchrun instead, or hide the "
            "devices (CUDA_VISIBLE_DEVICES='') to train on the CPU. A family for accelerators is used when it is asked "
            "for by name (docs/limitations.md)"
        )
