"""The whole tree of errors. Each says whose fault it is and what happens next.

UnderstudyError
├── UsageError            the user's call or flag is wrong; the message names what to change
│   ├── SettingsError     a flag or environment variable cannot be used
│   └── ProtectError      something given to job.protect() cannot be protected
├── WireError             a message that is malformed, too large or from an old generation; it is refused
├── Deposed               another coordinator leads; this one decides nothing any more
├── TransferError         state did not arrive whole; the recovery is opened again
├── RegroupError          process groups could not be formed again; the recovery is opened again
├── UnfitError            a replacement cannot be made equal to the rank that it takes over; others are tried
├── CheckpointError       a checkpoint is partial, damaged or does not fit; an older one may be tried
├── DeviceLost            this process can do nothing on its device any more; it ends, and is replaced
├── SchedulerError        a scheduler does not answer; it is asked again
├── PluginError           a part of another package cannot be used; it is left out and the job goes on
└── LedgerError           a ledger is missing or damaged; verify and explain stop

StepAbandoned             (BaseException) the body of a step is unwound because the generation ended. Not an
                          error: `with step:` catches it and the step runs again. It is no `Exception`, so that a
                          broad `except Exception` in a training loop cannot swallow it.
PartFinished              (BaseException) the body of a step has done a part of it; it is unwound before it changes
                          anything, and runs again on the next part.
"""


class UnderstudyError(Exception):
    """Base of everything that Understudy raises as an error."""


class UsageError(UnderstudyError):
    """The caller must change something; the message says what."""


class SettingsError(UsageError):
    """A flag or environment variable cannot be used."""


class ProtectError(UsageError):
    """An object given to job.protect() cannot be protected."""


class WireError(UnderstudyError):
    """A message could not be read, or must not be obeyed. `kind`: under which it is counted."""

    def __init__(self, text: str, *, kind: str = "malformed") -> None:
        super().__init__(text)
        self.kind = kind


class Deposed(UnderstudyError):
    """Another coordinator leads. The one that gets this stops deciding at once."""


class TransferError(UnderstudyError):
    """State did not arrive as it was sent."""


class RegroupError(UnderstudyError):
    """Process groups could not be formed for the new generation."""


class UnfitError(UnderstudyError):
    """This process cannot become the rank that it was given; the message says what its script must change."""


class CheckpointError(UnderstudyError):
    """A durable checkpoint cannot be used, or could not be made. The message says which and why."""


class DeviceLost(UnderstudyError):
    """Nothing can be said any more of what the device of this process does or will do. The message says why."""


class SchedulerError(UnderstudyError):
    """A scheduler could not be asked, or did not do what it was asked for. The message has its words."""


class PluginError(UnderstudyError):
    """A part cannot be used. The message names it and its package, and says what to do."""


class LedgerError(UnderstudyError):
    """A ledger is missing or damaged. The message names the file and the line."""


class StepAbandoned(BaseException):
    """Unwinds the body of a step whose generation has ended."""


class PartFinished(BaseException):
    """Unwinds the body of a step that has more parts to come."""
