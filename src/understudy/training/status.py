"""Where this member stands: its generation, what it holds, and what its main thread is doing.

The main thread writes it, in steps and in recoveries; the control thread reads it. Knows nothing of groups and state.
"""

from collections.abc import Callable

from understudy.detection.progress import Place, ProgressWriter
from understudy.foundation.ids import StepNumber
from understudy.training.control import ControlLine

PhaseListener = Callable[[str, int], None]


class MemberStatus:
    """`holds`: the number of committed steps in this member's state, None while it has none."""

    def __init__(self, control: ControlLine, progress: ProgressWriter) -> None:
        assignment = control.assignment
        assert assignment is not None
        self._control, self._progress = control, progress
        self._listeners: list[PhaseListener] = []
        self.joiner = not assignment.founding
        self.generation, self.founded_in = assignment.generation, assignment.founded_in
        self.holds: StepNumber | None = None if self.joiner else StepNumber(0)
        self.established = self.joiner
        self.trained = not self.joiner  # its engines are as its steps, or other ranks, have made them
        self.total = 0  # of steps; known when the loop over them begins
        self.began_at = StepNumber(0)  # the first step of this world: a durable checkpoint may have been resumed
        self.in_steps = False
        self.at_bridge = False  # a leaver and its successor wait for each other
        self.between_steps = False  # the main thread is in the script's own code between two steps
        self.in_section = False  # ... in a section there (`sections`)
        self.in_tail = False  # since the last recovery others go on between two steps, and this member with them

    def on_phase(self, listener: PhaseListener) -> None:
        """Tell `listener(phase, generation)` when this member enters a phase of a recovery."""
        self._listeners.append(listener)

    def phase(self, name: str) -> None:
        for listener in self._listeners:
            listener(name, self.generation)

    def show(self, place: Place) -> None:
        self._progress.show(self.generation, -1 if self.holds is None else self.holds, place)

    def show_compute(self, step: int, seconds: float) -> None:
        """`seconds`: from the begin of the step to its fence, without the time in which it waited for others."""
        self._progress.show_compute(step, max(0.0, seconds))

    def go_on_between_steps(self) -> None:
        """In the script's own code, after a commit or a recovery."""
        self.show(Place.BETWEEN_STEPS)
        self.between_steps = True

    @property
    def abandoned(self) -> bool:
        return self._control.abandoned > self.generation

    @property
    def interrupted(self) -> bool:
        """Is waiting for others pointless? In setup it never is: a founder that must begin again is killed. A member
        that takes over a rank that moves waits for its leaver before its own first step, and the leaver may die."""
        return (self.in_steps or self.at_bridge) and self.abandoned
