"""Rank-local buffers (`state.rank_local_buffers`) through a loss: kept on this host for a replacement.

They are kept where a step begins, and as the forward pass left them at its fence. A rank that takes its state from a
twin gets everything from there but these: a replacement on the same host has what was kept, a survivor its own. Only a
replacement on another host goes on with its donor's.
"""

from collections.abc import Callable, Collection

import torch

from understudy.state.digests import tensor_bytes
from understudy.state.protected_state import Protected
from understudy.state.rank_local_files import RankLocalFiles


class RankLocalBuffers:
    """Of one rank. Inert until `use` has named some."""

    def __init__(
        self, files: RankLocalFiles, protected: Protected, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._files, self._protected, self._note = files, protected, note
        self._paths: Collection[str] = ()
        self._begun = False  # what is in the buffers belongs to this rank
        self._held: list[torch.Tensor] = []
        self._complained = False

    def use(self, paths: Collection[str]) -> None:
        self._paths = paths

    def begin(self, step: int) -> None:
        """An attempt at `step` begins, with the buffers that belong there."""
        self._begun = True
        self._keep(step)

    def arrive(self, step: int) -> None:
        """At the fence. If `step` is committed without us, our replacement begins the next one with these."""
        self._keep(step + 1)

    def hold(self) -> None:
        """State is about to arrive from a twin, perhaps in several attempts."""
        if self._begun and not self._held:
            self._held = [buffer.clone() for buffer in self._buffers()]

    def put_back(self, step: int) -> None:
        """The state before `step` has arrived: put this rank's own buffers in the place of the donor's."""
        if not self._paths:
            return
        held, self._held = self._held, []
        content = self._files.find(step)
        own = list(self._buffers())
        if content is not None and len(content) == sum(buffer.nbytes for buffer in own):
            _fill(own, content)
        elif held:
            for buffer, mine in zip(own, held, strict=True):
                buffer.copy_(mine)
        else:
            self._note(
                f"buffers that replicas do not share ({named(self._paths)}) were lost with their rank's host: its "
                f"replacement goes on from step {step} with a twin's. Parameters stay exact unless these buffers take "
                "part in training"
            )

    def _keep(self, step: int) -> None:
        if not self._paths:
            return
        content = b"".join(tensor_bytes(buffer) for buffer in self._buffers())
        trouble = self._files.keep(step, content)
        if trouble is not None and not self._complained:
            self._complained = True
            self._note(
                f"buffers that replicas do not share could not be kept in shared memory before step {step}: {trouble}. "
                "Training goes on; if this rank is lost now, its replacement has a twin's"
            )

    def _buffers(self) -> list[torch.Tensor]:
        return [tensor for path, tensor in self._protected.parameters() if path in self._paths]


def named(paths: Collection[str], most: int = 3) -> str:
    """As the script knows them: `model.norm.running_mean`."""
    names = sorted(path.split("/", 1)[1].replace("/", ".") for path in paths)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _fill(buffers: list[torch.Tensor], content: bytes) -> None:
    place = 0
    for buffer in buffers:
        if buffer.nbytes:
            part = torch.frombuffer(bytearray(content[place : place + buffer.nbytes]), dtype=torch.uint8)
            buffer.copy_(part.view(buffer.dtype).reshape(buffer.shape))
        place += buffer.nbytes
