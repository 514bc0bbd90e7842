"""Which run of a job this is. A job's name is used again and again; each run of it has an identity of its own.

The rule for what the store keeps: the facts of a run stay under the job's name until the next run begins and writes its
own over them. So every coordinator and host that was part of a run, however late, hears how it ended; and one that was
started afterwards never takes the end of an old run for its own.

- A coordinator goes on with a run that is under way, and tells the end of one that ended while it stood by.
- A run that had ended before this coordinator was started is past (`Past`): it begins the next one. Hosts of the past
  run that still look for a coordinator are told how theirs ended.
- A run that is under way waits for the first of its hosts to come back; without any host a leader knows nothing of it
  and decides nothing. If none comes within `takeover_patience`, and a new agent does, it is abandoned: the next begins.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from understudy.coordinator import kept
from understudy.coordinator.keeping import Keeper
from understudy.errors import LedgerError, SettingsError, WireError
from understudy.foundation.clock import Clock
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.reasons import Code, because
from understudy.protocol.sentences import sentence
from understudy.wire import cluster as wire

_GIVEN_UP = StopJob(outcome=Outcome.STOPPED, reason=because(Code.NEW_RUN), exit_code=1)


def new_id() -> str:
    """When it began, for people who read it, and enough chance that no two are the same."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


class RunOver(WireError):
    """The run to which a host belongs has ended. `stop`: how."""

    def __init__(self, run: str, stop: StopJob) -> None:
        super().__init__(f"run {run} has ended: {sentence(stop.reason)}", kind="over")
        self.stop = stop


@dataclass(frozen=True, slots=True)
class Past:
    """What the store held when this coordinator was started and is not to go on: a run that had ended, or that the
    operator gives up (`--new-run`). `damaged`: it could not even be read."""

    run: str | None = None
    damaged: bool = False

    def has(self, known: "kept.Kept") -> bool:
        return self.run is not None and known.run == self.run


NOTHING_PAST = Past()


class Identity:
    """Of the run that a leader has to do with. `run` is empty until there is one. `key`: known to its coordinators only
    (`origin.seal`)."""

    def __init__(self, past: Past, clock: Clock, say: Callable[[str], None]) -> None:
        self.run, self.key = "", secrets.token_bytes(32)
        self._past, self._past_stop = past, _GIVEN_UP
        self._clock, self._say = clock, say
        self._found: kept.Kept | None = None  # under way, and none of its hosts is back yet
        self._found_at = 0.0

    async def look(self, keeper: Keeper) -> "kept.Kept | None":
        """What is kept of a run that is not past. One that has ended can be told of; one under way waits for `check`.
        Raises `LedgerError` if it cannot be read."""
        try:
            known = await kept.read(keeper)
        except LedgerError:
            if not self._past.damaged:
                raise
            return None
        if known is None:
            return None
        if self._past.has(known):
            self._past_stop = known.facts.ending.stopped or _GIVEN_UP
            self._say(
                f"run {known.run or 'before this one'} is past ({sentence(self._past_stop.reason)}); a new one begins"
            )
            return None
        self.run, self.key = known.run or new_id(), known.key or self.key
        if known.facts.ending.stopped is None:
            self._found, self._found_at = known, self._clock.now()
            self._say(f"run {self.run} is under way; waiting for one of its hosts")
        return known

    def check(self, attend: wire.Attend, *, over: bool) -> "kept.Kept | None":
        """May this host take part? Raises `WireError` if not. Returns what the leader is to take over, when this is the
        first host of a run under way. `over`: the run has ended."""
        if attend.run and attend.run == self._past.run:
            raise RunOver(attend.run, self._past_stop)
        if attend.run and not self.run:
            why = f"host {attend.host} trains in run {attend.run}, of which the store knows nothing"
            raise WireError(f"{why}; it is not touched, but cannot be helped: end it to begin anew", kind="unknown run")
        if attend.run and attend.run != self.run:
            why = f"host {attend.host} is of run {attend.run}, which was given up"
            raise WireError(f"{why}: run {self.run} has begun since", kind="other run")
        belongs = bool(attend.run) or attend.term > 0  # older agents do not name their run; new ones obeyed nobody yet
        if over and not belongs:
            raise WireError(f"run {self.run} has just ended, and host {attend.host} is for the next one", kind="over")
        if self._found is not None and not belongs:
            self._abandon(self._found, attend)
        found, self._found = self._found, None
        return found

    def _abandon(self, found: "kept.Kept", attend: wire.Attend) -> None:
        patience = found.policy.takeover_patience
        left = self._found_at + patience - self._clock.now()
        if left > 0:
            why = f"run {self.run} is under way: its own hosts have {left:.0f} s more to come back"
            raise WireError(f"{why} before a new one begins with host {attend.host}", kind="awaiting")
        self._say(f"run {self.run} is abandoned: none of its hosts came back within {patience:g} s; a new one begins")
        self._found = None

    def begin(self) -> None:
        self.run = new_id()
        self._say(f"run {self.run} begins")


async def look_back(keeper: Keeper, job: str, *, new_run: bool) -> Past:
    """When a coordinator starts. Raises `SettingsError` if what is kept cannot be read and is not to be given up."""
    try:
        known = await kept.read(keeper)
    except LedgerError as error:
        if new_run:
            return Past(damaged=True)
        raise unreadable(job, error) from error
    if known is None:
        return NOTHING_PAST
    return Past(run=known.run) if new_run or known.facts.ending.stopped is not None else NOTHING_PAST


def unreadable(job: str, error: LedgerError) -> SettingsError:
    return SettingsError(
        f"what the store holds of job {job} cannot be read; another version may have written it ({error}). Nothing was "
        f"changed. Start the version that wrote it, or give it up with --new-run, or choose another name with --job"
    )
