"""A member whose device decides at the fence whether a step is applied, while its host runs ahead.

    host:    collective N ─▶ (flag of N-1 known?) ─▶ guard N ─▶ N+1: collective ─▶ (flag of N known?) ─▶ guard N+1 ...
    device:  ... collective N ─▶ contribution N ─▶ flag N ─▶ optimizer N, if the flag is good ─▶ collective N+1 ...

Behind the gradients goes a small sum over the world, the *flag*. Each rank contributes a nonce, which only this step of
this generation has; a rank that has aborted anything contributes nothing. The step is applied if the sum is that of all
nonces. The host does not wait for that: it goes on, and looks at the flag of a step at the fence of the next one
(`Script.ahead`), or before anybody looks at the state. So a member that is interrupted does not know what it holds: it
aborts, lets its device come to rest, reads its flags, and only then reports.

What goes wrong is what goes wrong in `device`, and also:

- The flag may have a communicator of its own. One of the two can be broken off while the other one still works.
- Garbage can get into the flag's collective too. It is never the right sum by chance, but it may be an old one: what
  was received once is still in some memory, even if it was broken off before it was read.

A world that is not established has the host's fence (`device`). Knows nothing of time, as `member` does not.
"""

from dataclasses import dataclass
from typing import Final

from understudy.foundation.ids import StepNumber
from understudy_testkit.simulator.device import COLLECTIVE, DeviceMember
from understudy_testkit.simulator.phases import Meeting, MemberPhase, Surroundings, garbage_of
from understudy_testkit.simulator.watching import after_commit

CONTRIBUTION: Final = "contribution"  # to the flag, read behind the collective
FLAG: Final = "flag"  # and the optimizer behind it
Nonce = tuple[int, int]


@dataclass(slots=True)
class DeviceSideMember(DeviceMember):
    flags_aborted: bool = False  # the flags' communicator of `acting`
    goes_on_at: int | None = None  # the step that its host would run next, if it has not read the flags before that
    unread: tuple[int, ...] = ()  # steps whose flags its host has not read
    results: tuple[tuple[int, bool], ...] = ()  # of flags that its device has, and its host has not read
    old_sums: frozenset[Nonce] = frozenset()  # what garbage may consist of

    @property
    def holds(self) -> StepNumber | None:
        """As its host sees it, which takes every step for good until it has read a flag."""
        return self.certainly_holds() if self.goes_on_at is None else StepNumber(self.goes_on_at)

    # -- the device ---------------------------------------------------------------------------------------------------

    def device_can_run(self, world: Surroundings) -> bool:
        if not self.queue:
            return False
        kind, step = self.queue[0]
        match kind:
            case "collective":
                return self.aborted or self._comes_to_an_end(self._collective(step), world)
            case "flag":
                return self.flags_aborted or self._comes_to_an_end(self._flag(step), world)
        return True

    def _comes_to_an_end(self, collective: Meeting, world: Surroundings) -> bool:
        """Who is broken off lets others go on, even with one that had not come yet."""
        return world.is_complete(collective) or world.is_contaminated(collective)

    def run_device(self, world: Surroundings) -> None:
        kind, step = self.queue[0]
        if kind == CONTRIBUTION:
            self.queue = self.queue[1:]
            self._contribute(step, world)
        elif kind == FLAG:
            self.queue = self.queue[1:]
            self._optimize_if_good(step, world)
        else:
            DeviceMember.run_device(self, world)
        self._reach(world)

    def _reach(self, world: Surroundings) -> None:
        """A collective takes part when the device comes to it, not when the host has asked for it."""
        if self.queue and self.queue[0][0] == COLLECTIVE and not self.aborted:
            world.arrive(self, self._collective(self.queue[0][1]))

    def _contribute(self, step: int, world: Surroundings) -> None:
        """The word is read in the order of the device: behind its gradients. It is set before anything is aborted."""
        if self.flags_aborted:
            return
        if not self._poisoned(step):
            world.arrive(self, self._votes(step))
        world.arrive(self, self._flag(step))

    def _poisoned(self, step: int) -> bool:  # noqa: ARG002
        return self.aborted or self.flags_aborted

    def _optimize_if_good(self, step: int, world: Surroundings) -> None:
        good = self._flag_is_good(step, world)
        if world.is_complete(self._votes(step)):  # the sum is somewhere, whether it was read here or not
            self.old_sums |= {self._nonce(step)}
        self.results = (*self.results, (step, good))
        if good:
            assert self.state is not None
            self.state = (*self.state, ~step if self.garbage else step)
            world.on_applied(self)

    def _flag_is_good(self, step: int, world: Surroundings) -> bool:
        if self.flags_aborted or world.is_contaminated(self._flag(step)):
            return self._nonce(step) in self.old_sums
        return world.is_complete(self._votes(step))

    def _nonce(self, step: int) -> Nonce:
        return self.acting, step

    def abort(self, world: Surroundings) -> None:
        """The gradients' communicator. The flags' one follows; the device may run meanwhile."""
        DeviceMember.abort(self, world)
        self._abort_flags(world)

    def _abort_flags(self, world: Surroundings) -> None:
        if self.flags_aborted:
            return
        self.flags_aborted = True
        for kind, step in self.queue:
            if kind == FLAG:
                world.contaminate(self, self._flag(step))

    @property
    def can_fail(self) -> bool:
        if not self.queue:
            return False
        return not (self.flags_aborted if self.queue[0][0] == FLAG else self.aborted) and self.queue[0][0] in (
            COLLECTIVE,
            FLAG,
        )

    def fail(self, world: Surroundings) -> None:
        """It breaks off the collective that it is in, and no other one."""
        self.failing = True
        if self.queue[0][0] == FLAG:
            self._abort_flags(world)
        else:
            DeviceMember.abort(self, world)

    def concerned(self) -> set[Meeting]:
        mine = DeviceMember.concerned(self)
        for kind, step in self.queue:
            if kind in (CONTRIBUTION, FLAG):
                mine |= {self._flag(step), garbage_of(self._flag(step)), self._votes(step)}
        return mine

    def _flag(self, step: int) -> Meeting:
        return self.acting, FLAG, step

    def _votes(self, step: int) -> Meeting:
        """Who has contributed the nonce."""
        return self.acting, "votes", step

    # -- the host -----------------------------------------------------------------------------------------------------

    @property
    def waits_for_device(self) -> bool:
        return self.phase in (MemberPhase.COLLECTIVE, MemberPhase.CONFIRMING)

    def can_move(self, world: Surroundings) -> bool:
        if self.phase is MemberPhase.CONFIRMING:
            return self._has_results_of(len(self.unread))
        if self.phase is MemberPhase.COLLECTIVE and self.established:
            return self._has_results_of(len(self.unread) - self._may_be_ahead() + 1)
        return DeviceMember.can_move(self, world)

    def _may_be_ahead(self) -> int:
        return self.script.ahead

    def _has_results_of(self, oldest: int) -> bool:
        """Of so many of the oldest unread flags, or of a bad one, behind which nothing else is asked."""
        return len(self.results) >= oldest or any(not good for _, good in self.results)

    def move(self, world: Surroundings) -> None:
        match self.phase:
            case MemberPhase.COLLECTIVE if self.established:
                self._guard(world)
            case MemberPhase.CONFIRMING:
                self._confirm(world)
            case _:
                DeviceMember.move(self, world)

    def _start_collective(self, world: Surroundings) -> None:
        if self._unwind_if_abandoned(world):
            return
        if self.aborted:
            self._lose_contact(world)
            return
        self.queue = (*self.queue, (COLLECTIVE, self.attempt))
        self.enter(MemberPhase.COLLECTIVE, self._collective(self.attempt))
        self._reach(world)

    def _guard(self, world: Surroundings) -> None:
        """At the fence: the flag and the optimizer are queued. It need not look whether anything has failed."""
        if not self._read_flags(world) or self.flags_aborted:
            self._lose_contact(world)
            return
        self._finish_saving(world)
        self.queue = (*self.queue, (CONTRIBUTION, self.attempt), (FLAG, self.attempt))
        self.unread, self.goes_on_at = (*self.unread, self.attempt), self.attempt + 1
        if self.script.reads_state or self.goes_on_at <= self.watches_until:
            self.enter(MemberPhase.CONFIRMING)
        else:
            self._go_on(world)

    def _read_flags(self, world: Surroundings) -> bool:
        """Those that are there. What was applied is recorded now. False: a step was not applied."""
        for step, good in self.results:
            if not good:
                return False
            self.unread = self.unread[1:]
            world.on_committed(self, step + 1)
        self.results = ()
        if not self.unread:
            self.goes_on_at = None
        return True

    def _confirm(self, world: Surroundings) -> None:
        reads = self.script.reads_state or (self.goes_on_at or 0) <= self.watches_until
        if not self._read_flags(world):
            self._lose_contact(world)
        elif reads:
            after_commit(self, world)
            self._go_on(world)
        else:
            self._begin_step(world)

    def _begin_step(self, world: Surroundings) -> None:
        """Whoever is done, or leaves at a boundary, knows what it holds."""
        assert self.holds is not None
        if self.unread and (self.boundary is not None or self.holds >= self.script.steps):
            self.enter(MemberPhase.CONFIRMING)
        else:
            DeviceMember._begin_step(self, world)

    def _drain(self, world: Surroundings) -> None:
        """Then it is certain which steps were applied."""
        self._abort_flags(world)
        self._run_all(world)
        self._read_flags(world)
        self.unread, self.results, self.goes_on_at = (), (), None

    def _take_part(self, world: Surroundings) -> None:
        self.flags_aborted = False
        DeviceMember._take_part(self, world)
