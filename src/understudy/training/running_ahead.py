"""A host that goes past the fence while its device stands before it (`groups.device_side_fence`), and its way back.

    fence of N: flag of N-1 is known ─▶ flag of N is queued ─▶ optimizer ─▶ end of the body ─▶ body of N+1 ─▶ fence ...

The host does not know whether a step is applied until it has read its flag: at the fence of the next step, before
anything reads the state, or when the device has come to rest after a fault. Until then the step is written down
nowhere. If it was not applied, this rank holds the state before it, and everything that the host has done since is put
back: small state, buffers, what engines keep of a pass.

Only where all ranks agree that nothing speaks against it; otherwise ranks meet at the fence as ever (`steps`). The
objections are here.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from understudy.errors import StepAbandoned
from understudy.foundation.ids import StepNumber
from understudy.groups.device_side_fence import DeviceSideFence, Flag, await_flag
from understudy.groups.world import World
from understudy.training.body import Body, Place
from understudy.training.contact import Contact
from understudy.training.replicas import Replicas
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""What leaves everything as it is where `found_inf` is 1. All others ignore it, or refuse it."""

_FOUND_INF = "found_inf"  # as a GradScaler calls it, and fused optimizers look for it
_PLACES = 2  # a host is ahead by one step


class RunsAhead(Protocol):
    """`is_on`: in this generation, on all ranks alike. `unread`: a step may not be applied, and only its flag knows."""

    @property
    def is_on(self) -> bool: ...
    @property
    def unread(self) -> bool: ...
    def agree(self) -> None: ...
    def begin_step(self, step: int) -> None: ...
    def pass_fence(self, step: int) -> None: ...
    def arm(self, optimizer: torch.optim.Optimizer) -> None: ...
    def disarm(self) -> None: ...
    def know(self) -> None: ...
    def at_rest(self) -> int | None: ...


class NeverAhead:
    """The host waits at the fence."""

    is_on = unread = False

    def agree(self) -> None:
        return

    def begin_step(self, step: int) -> None:  # noqa: ARG002
        return

    def pass_fence(self, step: int) -> None:
        raise AssertionError(f"step {step} has the host's fence")

    def arm(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        return

    def disarm(self) -> None:
        return

    def know(self) -> None:
        return

    def at_rest(self) -> int | None:
        return None


class Armed:
    """An optimizer while it steps behind a flag."""

    def __init__(self, optimizer: torch.optim.Optimizer, flag: Flag) -> None:
        """The flag of a scaler stays in force. It is combined by the maximum: optimizers look for exactly 1."""
        self._optimizer, self._scaler = optimizer, getattr(optimizer, _FOUND_INF, None)
        self._had_state, self._is_released = set(optimizer.state), False
        bad = flag.bad if self._scaler is None else torch.maximum(flag.bad, self._scaler.to(flag.bad))
        setattr(optimizer, _FOUND_INF, bad)

    def release(self) -> None:
        """It has stepped, or never will. A scaler takes its own flag away by itself, afterwards."""
        if self._is_released:
            return
        self._is_released = True
        if self._scaler is not None:
            setattr(self._optimizer, _FOUND_INF, self._scaler)
        elif hasattr(self._optimizer, _FOUND_INF):
            delattr(self._optimizer, _FOUND_INF)

    def forget_new_state(self) -> None:
        """It has made some and not filled it: SGD's momentum is what was in that memory before."""
        for parameter in [each for each in self._optimizer.state if each not in self._had_state]:
            del self._optimizer.state[parameter]


class RunAhead:
    """Of one member. `warned`: the fence is told before a communicator is aborted."""

    def __init__(
        self,
        fence: DeviceSideFence,
        *,
        warned: bool,
        status: MemberStatus,
        world: World,
        contact: Contact,
        body: Body,
        replicas: Replicas,
        ledger: StepLedger,
        note: Callable[[str], None],
    ) -> None:
        self._fence, self._status, self._world, self._contact = fence, status, world, contact
        self._body, self._replicas, self._ledger, self._note = body, replicas, ledger, note
        self._warned, self._agreed = warned, False
        self._flags: deque[Flag] = deque()  # not read yet
        self._armed: dict[int, list[Armed]] = {}  # by step, while its flag is not read
        self._places: dict[int, Place] = {}
        self._told: str | None = None

    @property
    def is_on(self) -> bool:
        return self._agreed and self._body.late_fence.undo is None

    @property
    def unread(self) -> bool:
        return bool(self._flags)

    # -- whether ------------------------------------------------------------------------------------------------------

    def agree(self) -> None:
        """A collective, with each world and each generation, once all groups are formed."""
        why = self._objection()
        self._agreed = not self._world.words.largest(int(why is not None))
        self._fence.begin(self._status.generation)
        if why is not None and why != self._told and self._world.rank == 0:
            self._note(f'join(fence="device") is not followed, ranks wait for each other at the fence: {why}')
        self._told = why

    def _objection(self) -> str | None:
        return (
            self._of_world()
            or objection_of(self._body.protected.optimizers)
            or objection_of_the_rest(self._body.protected.save is not None, list(self._body.protected.averages()))
            or self._body.small.objection()
        )

    def _of_world(self) -> str | None:
        if not self._warned:
            return "these communicators do not say when they are about to be aborted"
        if len(self._world.present) < self._world.size:
            return "ranks are absent, and the step is shared out anew"
        if self._replicas.in_windows:
            return "the loop is not ours, and what it does between two steps cannot be put back"
        if not self._replicas.all_are_twins:
            return (
                "not every rank is a twin of every other (sharded state, random streams or a loader's position of "
                "their own, statistics of batch norm): what was skipped could not be taken from another rank"
            )
        if self._body.late_fence.undo is not None:
            return "the body computes or communicates after an optimizer has stepped"
        return None

    # -- a step -------------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """The body has begun, and has changed nothing yet."""
        if self.is_on:
            self._places[step] = self._body.place()
            for old in [each for each in self._places if not step - _PLACES < each <= step]:
                del self._places[old]
        else:
            self.know()

    def pass_fence(self, step: int) -> None:
        """StepAbandoned if the step before was not applied."""
        self.know()
        self._flags.append(self._fence.queue(StepNumber(step)))
        self._armed[step] = []
        self._ledger.is_undecided = True

    def arm(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to step."""
        if self._flags:
            flag = self._flags[-1]
            self._armed[flag.step].append(Armed(optimizer, flag))

    def disarm(self) -> None:
        """Whatever is about to step has done so, or never will."""
        for armed in (each for several in self._armed.values() for each in several):
            armed.release()

    # -- what became of it --------------------------------------------------------------------------------------------

    def know(self) -> None:
        """Wait for all flags. StepAbandoned if contact is lost, or a step was not applied here."""
        while self._flags:
            flag = self._flags[0]
            if not await_flag(flag, self._contact.lost):
                raise StepAbandoned(f"step {flag.step} is abandoned before its flag is known")
            if not flag.is_good():
                raise StepAbandoned(f"step {flag.step} is not applied: not all ranks had their gradients")
            self._is_applied(self._flags.popleft())

    def _is_applied(self, flag: Flag) -> None:
        self._armed.pop(flag.step, None)
        self._ledger.is_undecided = bool(self._flags)
        self._ledger.saved()

    def at_rest(self) -> int | None:
        """After a fault the queue is empty, and every flag is known. Returns the first step that is not applied here,
        if there is one; everything is then as it was before that."""
        self.disarm()
        while self._flags:
            flag = self._flags.popleft()
            if flag.is_good():
                self._is_applied(flag)
                continue
            self._flags.clear()
            self._go_back_to(flag.step)
            return flag.step
        return None

    def _go_back_to(self, step: StepNumber) -> None:
        self._ledger.is_undecided = False
        self._ledger.forget_after(step)
        for armed in (each for place, several in self._armed.items() if place >= step for each in several):
            armed.forget_new_state()
        self._armed.clear()
        if self._status.holds is not None and self._status.holds > step:
            self._status.holds = step
            self._note(f"rank {self._world.rank} was past the fence of step {step}, which its device has not applied")
        self._body.back_to(self._places[step])
        self._body.protected.forget_gradients()


def objection_of(optimizers: dict[str, Any]) -> str | None:
    """Why these could not be kept from changing anything by the device alone."""
    if not optimizers:
        return "no optimizer is given to job.protect()"
    for name, optimizer in optimizers.items():
        if type(optimizer) not in FUSED:
            known = ", ".join(kind.__name__ for kind in FUSED)
            return f"{name} is a {type(optimizer).__name__}, and only {known} leave a step out on the device's word"
        if not all(group.get("fused") for group in optimizer.param_groups):
            return f"{name} is not fused: give fused=True to {type(optimizer).__name__}"
    return None


def objection_of_the_rest(saves: bool, averages: list[str]) -> str | None:
    if saves:
        return "the script's own functions save the state, and what they hold cannot be put back"
    if averages:
        return f"no optimizer steps {', '.join(averages)}: what else changes it is not kept from doing so"
    return None
