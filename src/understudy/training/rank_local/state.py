"""What only this rank knows and no twin could tell: its own random streams, and where its loader stands.

It is taken at the beginning of each step, put back when the step runs again, and kept (`state.rank_local_files`) for
a replacement. None of it exists for scripts whose random numbers and batches are functions of the step.
"""

from collections.abc import Callable
from typing import Any

from understudy.errors import TransferError
from understudy.state.encoding import pack, unpack
from understudy.state.rank_local_files import RankLocalFiles
from understudy.training import rng
from understudy.training.data.stateful_loader import LoaderData


class RankLocalState:
    """`tracked`: the random streams are the script's own. `joiner`: begin with what the former holder kept."""

    def __init__(
        self, files: RankLocalFiles, tracked: bool, joiner: bool, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._files, self._tracked, self._inherits = files, tracked, joiner
        self._note, self._began = note, -1
        self._streams: dict[str, Any] = {}
        self._before_section: dict[str, Any] = {}
        self._complained = False
        self.loader: LoaderData | None = None

    @property
    def exists(self) -> bool:
        """Then every rank must pass the fence together: no rank can be told later what it should have drawn."""
        return self._tracked or self.loader is not None

    def begin(self, step: int) -> None:
        """An attempt at `step` begins."""
        if not self.exists:
            return
        if step == self._began:  # it runs again
            if self.loader is not None:
                self.loader.run_again(step, lambda: self._kept(step)[1])
            if self._tracked:
                rng.restore_streams(self._streams)
            return
        if self._inherits:
            self._inherit(step)
        self._began = step
        self._streams = rng.capture_streams() if self._tracked else {}
        self._keep(step)

    def inherit_before(self, step: int) -> None:
        """A section begins before `step`. A joiner goes on with what the former holder kept last."""
        if self.exists and self._inherits:
            self._inherit(step)

    def remember(self) -> None:
        """Before a section, which may have to run again."""
        self._before_section = rng.capture_streams() if self._tracked else {}

    def put_back(self) -> None:
        if self._tracked:
            rng.restore_streams(self._before_section)

    def go_back(self) -> None:
        """The next step has been begun before: begin it with what was kept then."""
        self._inherits, self._began = True, -1

    def arrive(self, step: int) -> None:
        """At the fence. If `step` is committed without us, our replacement begins the next one with this."""
        if self.exists:
            self._keep(step + 1)

    def _keep(self, step: int) -> None:
        trouble = self._files.keep(step, self.pack())
        if trouble is not None and not self._complained:
            self._complained = True
            self._note(
                f"the random streams or the loader's position before step {step} could not be kept in shared memory: "
                f"{trouble}. Training goes on; if this rank is lost now, it cannot be taken over exactly"
            )

    def pack(self) -> bytes:
        """As it is now. Empty when there is none."""
        if not self.exists:
            return b""
        drawn = rng.capture_streams() if self._tracked else None
        position = self.loader.state_dict() if self.loader else None
        return pack([drawn, position], "the loader's state")

    def _inherit(self, step: int) -> None:
        self._go_on_with(*self._kept(step))

    def _kept(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The random streams and the loader's position at the beginning of `step`."""
        content = self._files.find(step)
        if content is None:
            raise TransferError(f"the random streams or the loader's position of step {step} were not kept")
        drawn, position = unpack(content)
        return drawn, position

    def unpack(self, content: bytes) -> None:
        """Go on from what was packed, here or by another process."""
        if self.exists and content:
            self._go_on_with(*unpack(content))

    def _go_on_with(self, drawn: dict[str, Any], position: dict[str, Any]) -> None:
        if self._tracked:
            rng.restore_streams(drawn)
        if self.loader is not None:
            self.loader.load_state_dict(position)
        self._inherits = False
