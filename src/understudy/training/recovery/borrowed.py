"""State that was taken while others were between two steps.

A rank that takes it there runs the script's own code after the step, as the others do. What that code changes
(schedulers, averages of weights) the giver may have changed already, or not yet: that cannot be told. So once the
script is back at its loop, and it has changed something, the state is taken again. Then all ranks stand at the same
boundary.
"""

from collections.abc import Mapping, Sequence

from understudy.state.protected_state import Protected


class Borrowed:
    """Of one member, which has `rank`."""

    def __init__(self, protected: Protected, rank: int) -> None:
        self._protected, self._rank = protected, rank
        self._digest: str | None = None
        self._givers: Sequence[int] = ()
        self._takers: set[int] = set()  # since the last step

    def transferred(self, donors: Mapping[int, Sequence[int]], between_steps: bool) -> None:
        """After every transfer. `donors`: by rank that took its state."""
        if not between_steps:
            self.forget()
            return
        self._takers |= set(donors)
        if self._rank in donors:
            self._givers = donors[self._rank]
            self._digest = self._protected.digest_everything()

    def forget(self) -> None:
        self._digest = None
        self._takers.clear()

    @property
    def changed(self) -> bool:
        """Has the script changed since what was taken?"""
        return self._digest is not None and self._digest != self._protected.digest_everything()

    @property
    def alone(self) -> bool:
        """Have all givers taken theirs as well, since then? Then no rank has it better."""
        return self._takers.issuperset(self._givers)
