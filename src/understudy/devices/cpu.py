"""The CPU. What it was told to do is done when the call returns, so there is nothing to wait for."""

from collections.abc import Mapping, Sequence

import torch


class Done:
    """An event on a device that is never behind."""

    def complete(self) -> bool:
        return True


_DONE = Done()


class Cpu:
    contract_version = 2
    name = "cpu"
    asynchronous = False

    def present(self) -> bool:
        return True

    def objection(self, environment: Mapping[str, str]) -> str | None:  # noqa: ARG002
        return None

    def spoilt_by_fork(self) -> bool:
        return False

    def touched(self) -> bool:
        return False

    def view(self, devices: Sequence[str], own: int, at: int) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def take(self, local_rank: int) -> torch.device:  # noqa: ARG002
        return torch.device("cpu")

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def pin(self, memory: torch.Tensor) -> None:
        """All of it is where the processor is."""

    def unpin(self, memory: torch.Tensor) -> None:
        """See `pin`."""

    def copy_to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Done:
        for source, landing in pairs:
            landing.copy_(source)
        return _DONE

    def record(self) -> Done:
        return _DONE

    def drain(self, within: float | None) -> None:  # noqa: ARG002
        return

    def probe(self, within: float) -> None:  # noqa: ARG002
        return

    def is_lost(self, error: BaseException) -> bool:  # noqa: ARG002
        return False

    def seed(self, value: int) -> None:
        """torch's stream on the CPU belongs to the process, whatever device it trains on (`training.rng`)."""

    def random_streams(self) -> list[torch.Tensor]:
        return []

    def set_random_streams(self, streams: Sequence[torch.Tensor]) -> None:
        """See `seed`."""
