"""Backends between two ranks, beside the groups: one hands its rank over to another, one keeps copies for another.

Knows nothing of how they are connected (`world`).
"""

from datetime import timedelta
from typing import Any

import torch

_PATIENCE = timedelta(days=1000)


class Bridge:
    """Carries messages to the one peer there is, whatever rank it is called by."""

    def __init__(self, backend: Any, peer: int) -> None:
        self._backend, self._peer = backend, peer

    def send(self, message: torch.Tensor, to: int, /) -> Any:  # noqa: ARG002
        return self._backend.send([message], self._peer, 0)

    def receive(self, into: torch.Tensor, sender: int, /) -> Any:  # noqa: ARG002
        return self._backend.recv([into], self._peer, 0)


class Pair(Bridge):
    """A bridge on which nothing may be said for a long time."""

    def receive(self, into: torch.Tensor, sender: int, /) -> "Patient":
        return Patient(super().receive(into, sender))


class Patient:
    """A group's own timeout would end a wait for the next copy, and the connection with it."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait(_PATIENCE)
