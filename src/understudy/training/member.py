"""The parts of one member of the job inside the worker process, and which part knows which.

Every part gets what it needs here and knows nothing else. Only the loop (`job`) and the kinds of steps (`steps`,
`degraded.step`) see a member as a whole.

    status ◀─ contact ◀─ peer_memory ◀─ replicas ◀─ probation, transfer, regrouping ◀─ recovery ◀─ shutdown
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from understudy.devices.contract import Device
from understudy.devices.deciding import DecidingDevice
from understudy.foundation.settings import WorkerSettings
from understudy.groups.device_fence import DeviceFence, comes_to_its_end
from understudy.groups.device_side_fence import DeviceSideFence
from understudy.groups.engines import Engines
from understudy.groups.fence import Fences
from understudy.groups.world import World
from understudy.ledger.spool import SpoolWriter
from understudy.state.buffers import ChangingBuffers
from understudy.state.peer_memory.snapshots import Snapshots
from understudy.state.protected_state import Protected
from understudy.state.rank_local_files import RankLocalFiles
from understudy.state.state_digests import digests_of, ledger_digests
from understudy.training.body import Body
from understudy.training.contact import Contact
from understudy.training.control import ControlLine
from understudy.training.degraded.mode import DegradedMode
from understudy.training.device_rest import rest_of
from understudy.training.late_fence import LateFence
from understudy.training.loop_state import LoopState
from understudy.training.rank_local.buffers import RankLocalBuffers
from understudy.training.rank_local.state import RankLocalState
from understudy.training.recovery.between_steps import BetweenSteps
from understudy.training.recovery.borrowed import Borrowed
from understudy.training.recovery.probation import Probation
from understudy.training.recovery.recovery import Recovery
from understudy.training.recovery.regrouping import Regrouping
from understudy.training.recovery.state_transfer import StateTransfer
from understudy.training.recovery.tail import TailResults
from understudy.training.replicas import Replicas
from understudy.training.running_ahead import NeverAhead, RunAhead, RunsAhead
from understudy.training.script_errors import ScriptErrors
from understudy.training.sections import Sections
from understudy.training.setup_record import SetupRecordFile
from understudy.training.shutdown import Shutdown
from understudy.training.small_state import SmallState
from understudy.training.snapshots.checkpointing import Checkpointing
from understudy.training.snapshots.divergence import DivergenceSnapshots
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.snapshots.restore_points import RestorePoints
from understudy.training.status import MemberStatus
from understudy.training.step_inspector import StepInspector
from understudy.training.step_ledger import StepLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the loop and the steps use. `asynchronous`: the device is (`devices.contract`)."""

    asynchronous: bool

    control: ControlLine
    status: MemberStatus
    world: World
    body: Body
    rank_local: RankLocalState
    degraded: DegradedMode
    fences: Fences
    ledger: StepLedger
    errors: ScriptErrors
    contact: Contact
    replicas: Replicas
    peer_memory: PeerMemory
    checkpoints: Checkpointing
    probation: Probation
    tail: TailResults
    recovery: Recovery
    ahead: RunsAhead
    sections: Sections
    loop: LoopState
    shutdown: Shutdown


def make_member(
    settings: WorkerSettings,
    control: ControlLine,
    status: MemberStatus,
    world: World,
    device: Device,
    *,
    tracked: bool,
    device_decides: bool = False,
) -> Member:
    """`tracked`: the random streams are the script's own. Nothing is communicated here. The control thread is
    told what to interrupt when a generation is abandoned. What follows from `device.asynchronous` is chosen here, once:
    a device in front of the fence, a fence for twins too, and a queue that comes to rest before anything is told.
    `device_decides`: at the fence, where nothing speaks against it (`running_ahead`)."""
    rank, size, founded_in = world.rank, world.size, status.founded_in
    scratch = os.path.dirname(settings.progress_file)
    note = control.note
    protected = Protected(digests=digests_of(device))
    engines, buffers, inspector = Engines(), ChangingBuffers(), StepInspector()
    world.on_collective = inspector.collective
    control.in_gradient_wait = lambda: engines.waits.waiting
    ledger = StepLedger(
        SpoolWriter(scratch, settings.member, note),
        settings.member,
        rank,
        size,
        settings.ledger_digest_every,
        note,
        ledger_digests(settings.ledger_digests, device),
    )
    fences = Fences(
        scratch,
        rank,
        size,
        one_host=not settings.host,
        barrier=world.words.barrier,
        behind=functools.partial(DeviceFence, device=device) if device.asynchronous else None,
    )
    degraded = DegradedMode(engines, protected, inspector)
    late_fence = LateFence(protected=protected, world=world, status=status, inspector=inspector, note=note)
    rank_local = RankLocalState(RankLocalFiles(scratch, founded_in, rank), tracked, status.joiner, note)
    rank_local_buffers = RankLocalBuffers(RankLocalFiles(scratch, founded_in, rank, "buffers"), protected, note)

    replication = PeerReplication(scratch, founded_in, rank, settings.host if settings.peer_snapshot_every else "")
    contact = Contact(control, status, world, replication, rest_of(device, world.break_at_once))
    divergence = DivergenceSnapshots(settings.check_replicas_every, lambda: control.agreed)
    peer_memory = PeerMemory(
        Snapshots(
            scratch, founded_in, rank, settings.peer_snapshot_every, device=device if device.asynchronous else None
        ),
        replication,
        status=status,
        world=world,
        contact=contact,
        protected=protected,
        rank_local=rank_local,
        ledger=ledger,
        note=note,
    )
    checkpoints = Checkpointing(
        Path(settings.checkpoint_dir) if settings.checkpoint_dir else None,
        settings.checkpoint_every,
        "" if settings.host else settings.run_dir,
        status=status,
        world=world,
        fences=fences,
        protected=protected,
        rank_local=rank_local,
        ledger=ledger,
        note=note,
    )
    restore_points = RestorePoints(
        rank=rank,
        status=status,
        protected=protected,
        engines=engines,
        divergence=divergence,
        peer_memory=peer_memory,
        replication=replication,
        checkpoints=checkpoints,
    )
    replicas = Replicas(
        control=control,
        status=status,
        world=world,
        protected=protected,
        record=SetupRecordFile(scratch, founded_in, rank),
        rank_local=rank_local,
        rank_local_buffers=rank_local_buffers,
        ledger=ledger,
        peer_memory=peer_memory,
        degraded=degraded,
        many_hosts=bool(settings.host),
        asynchronous=device.asynchronous,
    )
    probation = Probation(
        control=control,
        status=status,
        protected=protected,
        rank_local=rank_local,
        ledger=ledger,
        replicas=replicas,
        peer_memory=peer_memory,
        divergence=divergence,
    )
    tail, small = TailResults(note), SmallState(protected)
    body = Body(
        protected=protected,
        small=small,
        engines=engines,
        buffers=buffers,
        inspector=inspector,
        rank_local=rank_local,
        rank_local_buffers=rank_local_buffers,
        late_fence=late_fence,
    )
    ahead: RunsAhead = NeverAhead()
    if device_decides and isinstance(device, DecidingDevice):
        device_side = DeviceSideFence(device, size, dist.all_reduce)
        ahead = RunAhead(
            device_side,
            warned=world.warn_before_abort(device_side.before_abort),
            status=status,
            world=world,
            contact=contact,
            body=body,
            replicas=replicas,
            ledger=ledger,
            note=note,
        )
    at_end = functools.partial(comes_to_its_end, device, contact.lost) if device.asynchronous else None
    recovery = Recovery(
        rank=rank,
        control=control,
        status=status,
        contact=contact,
        regrouping=Regrouping(
            status=status,
            world=world,
            engines=engines,
            fences=fences,
            degraded=degraded,
            replicas=replicas,
            late_fence=late_fence,
            ahead=ahead,
            peer_memory=peer_memory,
        ),
        transfer=StateTransfer(
            control=control,
            status=status,
            world=world,
            protected=protected,
            engines=engines,
            replicas=replicas,
            rank_local_buffers=rank_local_buffers,
            replication=replication,
            ledger=ledger,
            host=settings.host,
            at_end=at_end,
        ),
        tail=tail,
        borrowed=Borrowed(protected, rank),
        small=small,
        restore_points=restore_points,
        replicas=replicas,
        probation=probation,
        ahead=ahead,
    )
    control.when_abandoned(contact.interrupt, recovery.answer_for_main)
    BetweenSteps(status=status, contact=contact, tail=tail, recovery=recovery, note=note, at_end=at_end).install()
    errors = ScriptErrors(control, status)
    return Member(
        asynchronous=device.asynchronous,
        control=control,
        status=status,
        world=world,
        body=body,
        rank_local=rank_local,
        degraded=degraded,
        fences=fences,
        ledger=ledger,
        errors=errors,
        contact=contact,
        replicas=replicas,
        peer_memory=peer_memory,
        checkpoints=checkpoints,
        probation=probation,
        tail=tail,
        recovery=recovery,
        ahead=ahead,
        sections=Sections(
            status=status,
            contact=contact,
            fences=fences,
            body=body,
            rank_local=rank_local,
            tail=tail,
            recovery=recovery,
            errors=errors,
            note=note,
        ),
        loop=LoopState(RankLocalFiles(scratch, founded_in, rank, "loop"), note, elsewhere=bool(settings.host)),
        shutdown=Shutdown(
            rank=rank,
            control=control,
            status=status,
            errors=errors,
            recovery=recovery,
            peer_memory=peer_memory,
            replication=replication,
            checkpoints=checkpoints,
        ),
    )
