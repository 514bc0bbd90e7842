"""Where a simulated member may be, where it can be interrupted, and what it needs from the world around it."""

import enum
from typing import TYPE_CHECKING, Protocol

from understudy.foundation.ids import Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import Command
from understudy_testkit.simulator.script import State

if TYPE_CHECKING:
    from understudy_testkit.simulator.member import SimulatedMember

Meeting = tuple[int, str, int]
"""A collective or a barrier: its generation, its name, and the step."""


def garbage_of(collective: Meeting) -> Meeting:
    """Under which it is kept who has aborted that collective before their device had completed it."""
    generation, name, step = collective
    return generation, f"garbage {name}", step


class MemberPhase(enum.Enum):
    STARTING = "starting"  # a process that has not said hello
    IDLE = "idle"  # a spare, or a founding member that was not told its rank yet
    SETUP = "setup"  # founding: the user's setup
    REHEARSING = "rehearsing"  # joiner: setup and one step in a sandbox
    COMPUTING = "computing"
    COLLECTIVE = "in collective"
    ARRIVING = "arriving"  # the device is done and nothing was lost: about to say so at the fence
    FENCE = "at fence"
    APPLYING = "applying"
    ESTABLISHING = "establishing"  # the barrier after the first step
    BETWEEN = "between steps"
    EVALUATING = "evaluating"  # a collective between two steps
    CONFIRMING = "confirming"  # reads the flags of all steps that it has left behind
    WITHOUT_CONTACT = "without contact"  # its device has aborted by itself; waits to hear why
    DRAINING = "draining"  # left its generation; what its device was given still runs
    UNWOUND = "unwound"  # left its generation, waits for the verdict
    APPLYING_VERDICT = "applying by verdict"
    REGROUPING = "regrouping"
    AWAITING = "awaiting its turn"  # to receive; what it holds is whole still
    RECEIVING = "receiving"
    FINISHED = "finished"  # asks to be released
    GIVING = "giving"  # its rank was given to another one, which takes its state
    LEAVING = "leaving"
    ENDED = "ended"


MEETING_PHASES = frozenset(
    {
        MemberPhase.COLLECTIVE,
        MemberPhase.FENCE,
        MemberPhase.ESTABLISHING,
        MemberPhase.REGROUPING,
        MemberPhase.EVALUATING,
    }
)
INTERRUPTIBLE = MEETING_PHASES | {
    MemberPhase.AWAITING,
    MemberPhase.RECEIVING,
    MemberPhase.GIVING,
    MemberPhase.FINISHED,
    MemberPhase.SETUP,
    MemberPhase.BETWEEN,
    MemberPhase.CONFIRMING,
    MemberPhase.WITHOUT_CONTACT,
    MemberPhase.UNWOUND,
}
"""Where the news of a newer generation is obeyed at once; elsewhere the member first comes to the end of the place."""


class Surroundings(Protocol):
    """What a member needs from the world around it."""

    @property
    def now(self) -> float: ...
    def send(self, member: "SimulatedMember", event: ev.Event) -> None: ...
    def arrive(self, member: "SimulatedMember", meeting: Meeting) -> None: ...
    def is_complete(self, meeting: Meeting) -> bool: ...
    def contaminate(self, member: "SimulatedMember", collective: Meeting) -> None: ...
    def is_contaminated(self, collective: Meeting) -> bool: ...
    def donor(self, receiver: "SimulatedMember") -> "SimulatedMember | None": ...
    def on_acting(self, member: "SimulatedMember") -> None: ...
    def on_applied(self, member: "SimulatedMember") -> None: ...
    def on_committed(self, member: "SimulatedMember", steps: int | None = None) -> None: ...
    def on_resumed(self, member: "SimulatedMember") -> None: ...
    def on_stale(self, member: "SimulatedMember", command: Command) -> None: ...
    def on_exit(self, member: "SimulatedMember") -> None: ...
    @property
    def has_other_hosts(self) -> bool: ...
    def save(self, member: "SimulatedMember", state: State) -> bool: ...
    def saved(self, member: "SimulatedMember") -> tuple[State, ...]: ...
    def keeps(self, member: "SimulatedMember") -> tuple[tuple[Rank, StepNumber], ...]: ...
    def copy_of(self, owner: "SimulatedMember", keeper: "SimulatedMember") -> State: ...
    def reaches_keeper(self, member: "SimulatedMember") -> bool: ...
    def checkpoints(self) -> tuple[int, ...]: ...
    def forget_after(self, member: "SimulatedMember", step: int) -> None: ...
