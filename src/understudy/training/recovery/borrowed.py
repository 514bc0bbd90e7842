"""State that was taken while others were between two steps.

A rank that takes it there runs the script's own code after the step, as the others do. What is small (schedulers,
learning rates) it has as it was when the step was committed, if that could be kept (`small_state`), and changes it as
the others did. What else that code changes (averages of weights) the giver may have changed already, or not yet: that
cannot be told. So once the script is back at its loop, and it has changed something of that, the state is taken
again. Then all ranks stand at the same boundary.
"""

from collections.abc import Mapping, Sequence

from understudy.state.protected_state import Protected


class Borrowed:
    """Of one member, which has `rank`."""

    def __init__(self, protected: Protected, rank: int) -> None:
        self._protected, self._rank = protected, rank
        self._digest: str | None = None
        self._knows_small = False
        self._givers: Sequence[int] = ()
        self._takers: set[int] = set()  # since the last step

    def transferred(self, donors: Mapping[int, Sequence[int]], between_steps: bool, knows_small: bool = False) -> None:
        """After every transfer. `donors`: by rank that took its state. `knows_small`: what is small is as it was at the
        commit."""
        if not between_steps:
            self.forget()
            return
        self._takers |= set(donors)
        if self._rank in donors:
            self._givers, self._knows_small = donors[self._rank], knows_small
            self._digest = self._now()

    def forget(self) -> None:
        self._digest = None
        self._takers.clear()

    @property
    def changed(self) -> bool:
        """Has the script changed since what was taken?"""
        return self._digest is not None and self._digest != self._now()

    def _now(self) -> str:
        return self._protected.digest_of_tensors() if self._knows_small else self._protected.digest_everything()

    @property
    def alone(self) -> bool:
        """Have all givers taken theirs as well, since then? Then no rank has it better."""
        return self._takers.issuperset(self._givers)
