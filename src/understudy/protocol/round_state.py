"""What is known of the current generation: which members are awaited, what was told, and the plan.

Written by `round` and, where a part decides how a world is recovered, by `fallback`, `checks` and `replica_check`.
"""

from dataclasses import dataclass, field

from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.commands import ResumeAt
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.positions import Position
from understudy.protocol.probation import Probation
from understudy.protocol.reasons import Code, Reason, because
from understudy.protocol.recovery_kind import ORDINARY, RecoveryKind
from understudy.protocol.stages import Stage
from understudy.protocol.succession import FORGOTTEN


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no replacement can be made equal to a rank, though others could be: `restart_helps` when all begin anew."""

    why: Reason
    restart_helps: bool


@dataclass(slots=True)
class RoundState:
    stage: Stage = Stage.FOUNDING
    generation: Generation = Generation(0)
    founded_in: Generation = Generation(0)
    reason: Reason = field(default=because(Code.JOB_BEGINS), metadata=FORGOTTEN)  # why it was opened
    opened_at: float = field(default=0.0, metadata=FORGOTTEN)  # when this generation was
    setup_seconds: float = 0.0  # from the founding of the world to its first step
    pace: float = 0.0
    established: bool = False  # a member has its first step behind it
    start_overs: int = 0
    attempts: int = field(default=0, metadata=FORGOTTEN)
    attempted_at: float | None = field(default=None, metadata=FORGOTTEN)
    awaited: set[MemberId] = field(default_factory=set, metadata=FORGOTTEN)
    joining: set[MemberId] = field(default_factory=set, metadata=FORGOTTEN)
    positions: dict[Rank, Position] = field(default_factory=dict, metadata=FORGOTTEN)
    twin_keys: dict[Rank, str] = field(default_factory=dict, metadata=FORGOTTEN)
    holdings: dict[str, frozenset[int]] = field(default_factory=dict, metadata=FORGOTTEN)  # by twin key
    replicas: dict[Rank, frozenset[Rank]] = field(default_factory=dict)  # the ranks without which each cannot compute
    absent: frozenset[Rank] = frozenset()  # the world goes on without these
    homes: dict[Rank, tuple[HostId, int]] = field(default_factory=dict)  # host and slot of its last holder
    devices: dict[Rank, tuple[HostId, int]] = field(default_factory=dict)  # on which a rank has computed last
    store: HostId = THIS_HOST  # its c10d store is used in this generation
    boundary: StepNumber | None = field(default=None, metadata=FORGOTTEN)  # left before this step, and not at once
    leavers_at: dict[Rank, Position] = field(default_factory=dict, metadata=FORGOTTEN)
    kind: RecoveryKind = ORDINARY  # until the world has resumed
    probation: Probation | None = None
    not_finite: set[Rank] = field(default_factory=set, metadata=FORGOTTEN)  # ranks that said so when they resumed
    plan: ResumeAt | None = field(default=None, metadata=FORGOTTEN)
    deadline: float | None = field(default=None, metadata=FORGOTTEN)
    resend_at: float | None = field(default=None, metadata=FORGOTTEN)
    killed: set[MemberId] = field(default_factory=set, metadata=FORGOTTEN)
    durable: dict[Rank, tuple[StepNumber, ...]] = field(default_factory=dict, metadata=FORGOTTEN)  # told when asked for
    asked_for_checkpoints: set[MemberId] = field(default_factory=set, metadata=FORGOTTEN)  # and have not answered yet
    unfit: dict[Rank, Unfit] = field(default_factory=dict)  # ranks that no single replacement can take over
