"""Errors of the script: told to the agent, with a hint where torch's own words do not say what to change.

Two errors are the same error when they have the same type, the same place and the same words (numbers that vary by
process aside): then a replacement would meet it as well.
"""

import contextlib
import faulthandler
import re
import traceback

from understudy.errors import UsageError
from understudy.state.digests import digest_text
from understudy.training.control import ControlLine
from understudy.training.status import MemberStatus
from understudy.wire import messages

_OWN_GROUP = (
    "understudy.join() makes the default process group: remove your own call of "
    "torch.distributed.init_process_group, and call join() first"
)


def show_crashes() -> None:
    """A process that dies of itself (SIGSEGV, SIGABRT, SIGBUS, SIGFPE) says on its stderr where its threads were. A
    script that has set this up otherwise keeps what it has."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # there is no stderr
            faulthandler.enable()


class ScriptErrors:
    """Of one member. `failed`: the script has raised, and this process is on its way out."""

    def __init__(self, control: ControlLine, status: MemberStatus) -> None:
        self._control, self._status = control, status
        self.failed = False

    def report(self, error: BaseException, step: int | None) -> None:
        if self.failed:
            return
        self.failed = True
        if not isinstance(error, Exception):
            return  # KeyboardInterrupt speaks for itself
        hinted = _add_hint(error)
        report_error(self._control, error, step, repeats=hinted or self._would_repeat(error, step))

    def _would_repeat(self, error: Exception, step: int | None) -> bool:
        """Must the script be changed? What is wrong in the very first step (shapes, types) is wrong in any process;
        memory and files may have been short by accident."""
        in_first_step = step is not None and not self._status.established
        return isinstance(error, UsageError) or (in_first_step and not isinstance(error, OSError | MemoryError))


def report_error(control: ControlLine, error: Exception, step: int | None, *, repeats: bool) -> None:
    """`repeats`: any other process would meet the same error."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    control.send(
        messages.ScriptFailed(step=step, summary=summary[-2000:], fingerprint=fingerprint_of(error), repeats=repeats)
    )


def fingerprint_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    words = re.sub(r"0x[0-9a-fA-F]+", "0x", str(error))
    return digest_text(f"{type(error).__qualname__}|{place}|{words}".encode())[:16]


def _add_hint(error: BaseException) -> bool:
    """To the end of its traceback, once. Is there one? Then any other process would meet the same error."""
    if not any(frame.name == "init_process_group" for frame in traceback.extract_tb(error.__traceback__)):
        return False
    if _OWN_GROUP not in getattr(error, "__notes__", ()):
        error.add_note(_OWN_GROUP)
    return True
