"""A member that computes on a device: its host starts collectives and the optimizer, and the device completes them
later, in their order.

    host:    computing ─▶ in collective ──event──▶ (looks at its flags) arriving ─▶ at fence ─▶ applying ─▶ computing
    device:            collective N ────────────┘                                  └─ optimizer N   collective N+1

The host may be ahead by one step: it goes on when it has started the optimizer. Its view is `holds`; `state` is what
the device has done. What goes wrong on devices is here too:

- A killed peer does not end a collective. It hangs until this rank aborts it.
- An abort frees what hangs. The kernel counts as completed, and what stands behind it runs on garbage.
- It is contagious: a peer that has started the same collective and not completed it completes it with garbage, and
  sees no error. (It could also get the right result, or hang; no host could tell, and garbage is the worst of it.)
- A rank that has aborted starts no more collectives.

Knows one queue per device, and one collective per step. Does not know when things happen, as `member` does not.
"""

from dataclasses import dataclass, replace
from typing import Final

from understudy.foundation.ids import StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import AbandonGeneration
from understudy.protocol.positions import Position
from understudy_testkit.simulator.member import SimulatedMember
from understudy_testkit.simulator.phases import Meeting, MemberPhase, Surroundings, garbage_of

COLLECTIVE: Final = "collective"
OPTIMIZER: Final = "optimizer"
_USES_GROUPS = frozenset({MemberPhase.COMPUTING, MemberPhase.ARRIVING})
"""Places at which news of a newer generation is obeyed later, but groups are aborted at once."""


@dataclass(slots=True)
class DeviceMember(SimulatedMember):
    queue: tuple[tuple[str, int], ...] = ()  # what was started and is not completed: its kind, and the step
    garbage: bool = False  # what is in the gradients on the device
    aborted: bool = False  # its groups of `acting`
    failing: bool = False  # its device has aborted them by itself

    @property
    def holds(self) -> StepNumber | None:
        """As its host sees it: every optimizer that was started counts."""
        return self.certainly_holds()

    def certainly_holds(self) -> StepNumber | None:
        """When its device has done all that nothing can keep it from."""
        if self.state is None:
            return None
        return StepNumber(len(self.state) + sum(kind == OPTIMIZER for kind, _ in self.queue))

    # -- the device ---------------------------------------------------------------------------------------------------

    def device_can_run(self, world: Surroundings) -> bool:
        """Is the first in the queue completed at some time, by itself?"""
        if not self.queue:
            return False
        kind, step = self.queue[0]
        return kind == OPTIMIZER or self.aborted or world.is_complete(self._collective(step))

    def run_device(self, world: Surroundings) -> None:
        """The first in the queue is completed."""
        kind, step = self.queue[0]
        self.queue = self.queue[1:]
        if kind == COLLECTIVE:
            self.garbage = self.aborted or world.is_contaminated(self._collective(step))
            return
        assert self.state is not None
        self.state = (*self.state, ~step if self.garbage else step)
        world.on_applied(self)

    def abort(self, world: Surroundings) -> None:
        """Break off whatever collective of this generation still runs. Flags are set before: here, in one move."""
        if self.aborted:
            return
        self.aborted = True
        for kind, step in self.queue:
            if kind == COLLECTIVE:
                world.contaminate(self, self._collective(step))

    def fail(self, world: Surroundings) -> None:
        """Its device has found an error: it marks its groups as broken and aborts them."""
        self.failing = True
        self.abort(world)

    @property
    def can_fail(self) -> bool:
        """A device finds an error in a collective."""
        return not self.aborted and any(kind == COLLECTIVE for kind, _ in self.queue)

    def concerned(self) -> set[Meeting]:
        """Meetings that matter to what its device still has to do."""
        mine = {self._collective(step) for kind, step in self.queue if kind == COLLECTIVE}
        return mine | {garbage_of(collective) for collective in mine}

    def _collective(self, step: int) -> Meeting:
        return self.acting, MemberPhase.COLLECTIVE.value, step

    def _run_all(self, world: Surroundings) -> None:
        while self.queue:
            self.run_device(world)

    # -- the host -----------------------------------------------------------------------------------------------------

    @property
    def waits_for_device(self) -> bool:
        """It may go on when its device has done something."""
        return self.phase is MemberPhase.COLLECTIVE

    def can_move(self, world: Surroundings) -> bool:
        if self.phase is MemberPhase.COLLECTIVE and self.script.waits_at_fence:
            return self._event_is_complete()
        if self.phase is MemberPhase.COLLECTIVE:
            return True
        return self.phase is not MemberPhase.WITHOUT_CONTACT and SimulatedMember.can_move(self, world)

    def move(self, world: Surroundings) -> None:
        match self.phase:
            case MemberPhase.COMPUTING:
                self._start_collective(world)
            case MemberPhase.COLLECTIVE if self.script.waits_at_fence:
                self._after_event(world)
            case MemberPhase.ARRIVING:
                self._arrive(world)
            case MemberPhase.LEAVING:
                self._run_all(world)
                SimulatedMember.move(self, world)
            case MemberPhase.DRAINING:
                self._drain(world)
                SimulatedMember._unwind(self, world)
            case _:
                SimulatedMember.move(self, world)

    def _start_collective(self, world: Surroundings) -> None:
        if self._unwind_if_abandoned(world):
            return
        if self.aborted:
            self._lose_contact(world)
            return
        self.queue = (*self.queue, (COLLECTIVE, self.attempt))
        self._meet(world, MemberPhase.COLLECTIVE)

    def _event_is_complete(self) -> bool:
        return (COLLECTIVE, self.attempt) not in self.queue

    def _after_event(self, world: Surroundings) -> None:
        """The gradients are there; whether they are genuine shows in the flags, which are set before any abort."""
        if self._flags_are_clean():
            self.enter(MemberPhase.ARRIVING)
        else:
            self._lose_contact(world)

    def _flags_are_clean(self) -> bool:
        return self.heard <= self.acting and not self.failing

    def _arrive(self, world: Surroundings) -> None:
        """As the real fence: whoever finds all the others there passes, even if it has heard of a fault meanwhile."""
        self._finish_saving(world)
        self._meet(world, MemberPhase.FENCE)
        self.arrived = True
        assert self.meeting is not None
        if self.heard > self.acting and not world.is_complete(self.meeting):
            self._unwind(world)

    def _apply(self, world: Surroundings) -> None:
        self.arrived = False
        self.queue = (*self.queue, (OPTIMIZER, self.attempt))
        if self.phase is MemberPhase.APPLYING_VERDICT or self.script.reads_state:
            self._run_all(world)

    def _lose_contact(self, world: Surroundings) -> None:
        if self._unwind_if_abandoned(world):
            return
        self.enter(MemberPhase.WITHOUT_CONTACT)
        world.send(self, self.contact_lost(world.now))

    def contact_lost(self, at: float) -> ev.ContactLost:
        why = "its device has aborted a collective"
        return ev.ContactLost(at=at, member=self.id, generation=self.acting, why=why)

    # -- from one generation to the next ------------------------------------------------------------------------------

    def _on_abandon(self, command: AbandonGeneration, world: Surroundings) -> None:
        SimulatedMember._on_abandon(self, command, world)
        if self.heard > self.acting and self.phase in _USES_GROUPS:
            self.abort(world)

    def _unwind(self, world: Surroundings) -> None:
        if self.phase is MemberPhase.EVALUATING:
            self.in_tail = True
        self.abort(world)
        self.enter(MemberPhase.DRAINING)

    def _drain(self, world: Surroundings) -> None:
        """What it reports must be what its device has done, and nothing may run into what it takes or gives."""
        self._run_all(world)

    def _take_part(self, world: Surroundings) -> None:
        self.aborted = self.failing = False  # the groups are new
        SimulatedMember._take_part(self, world)

    def position(self) -> Position:
        told = SimulatedMember.position(self)
        return replace(told, arrived=False, arrived_asynchronously=told.arrived)
