"""Names for the numbers that travel through the whole program."""

from typing import NewType

Rank = NewType("Rank", int)
"""A position 0..W-1 in the world. It never changes hands by itself; members come and go in it."""

MemberId = NewType("MemberId", str)
"""One process incarnation, such as ``m-7``. It holds a rank or is a spare, and is never reused."""

HostId = NewType("HostId", str)
"""A machine (failure domain)."""

Generation = NewType("Generation", int)
"""The number of a membership. Everything that belongs to a membership carries it."""

StepNumber = NewType("StepNumber", int)
"""One optimizer step, counted from 0. A member that *holds* state N has committed the steps 0..N-1."""
