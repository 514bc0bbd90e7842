"""Why something was decided, refused or stopped, as a value: a code and its fields.

The protocol makes no sentences. `sentences` has the text of every code, `advice` what a person can do about it; both
are used where a reason is shown. A program that wants to know why asks for the code, never for words of a sentence.
Words that come from elsewhere (an exception, a detector, a person) are a field called `text`.

A code is kept and sent as its name, so that a version which does not know it can still read the rest.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union


class Code(enum.StrEnum):
    # -- words of people, processes and other versions
    REQUESTED = enum.auto()  # the words of a person, a monitor or a detector that asked for something
    STOP_REQUESTED = enum.auto()  # a person or a signal ended the job
    NEW_RUN = enum.auto()
    REFUSED_BY_COORDINATOR = enum.auto()  # a host takes no part in the job
    TOLD = enum.auto()  # words of another version, whose code is not known here
    EVIDENCE = enum.auto()

    # -- how a process ended
    EXITED = enum.auto()  # with an exit code
    SIGNALLED = enum.auto()  # by a signal that did not come from here
    RAISED = enum.auto()  # the script raised an exception
    HUNG = enum.auto()  # it made no progress, and was ended for that
    DISMISSED = enum.auto()  # it was ended for another reason

    # -- losses
    RANK_LOST = enum.auto()
    SPARE_LOST = enum.auto()
    HOST_LOST = enum.auto()
    SPARE_HOST_LOST = enum.auto()
    HOSTS_LOST = enum.auto()  # several at once
    HOST_SILENT = enum.auto()
    LOST_WITH_AGENT = enum.auto()
    LOST_AT_THE_END = enum.auto()
    LOST_CONTACT = enum.auto()
    NO_LOSS_KNOWN = enum.auto()

    # -- hosts
    HOST_JOINED = enum.auto()
    HOST_BACK = enum.auto()
    HOSTS_SILENT = enum.auto()
    HOSTS_PRESENT = enum.auto()
    WAITING_FOR_HOSTS = enum.auto()
    HOSTS_MISSING = enum.auto()
    HOST_DRAINED = enum.auto()
    HOST_READMITTED = enum.auto()
    WAS_DRAINED = enum.auto()
    WAS_SUSPECT = enum.auto()
    SPARES_HAD_DIED = enum.auto()
    SPARES_WANTED = enum.auto()

    # -- the world begins, or starts over
    JOB_BEGINS = enum.auto()
    BEGAN_WITH_CHECKPOINT = enum.auto()
    STARTED_OVER = enum.auto()
    CANNOT_START_OVER = enum.auto()
    START_OVERS_SPENT = enum.auto()
    NO_TWIN = enum.auto()
    NO_COVER = enum.auto()
    COVERED = enum.auto()
    COVERED_ON_OWN_HOST = enum.auto()

    # -- the job ends
    ALL_FINISHED = enum.auto()
    ALL_SCRIPTS_ENDED = enum.auto()
    SCRIPT_FAILED = enum.auto()
    SCRIPT_ENDED_IN_RECOVERY = enum.auto()
    SCRIPT_HAD_ENDED = enum.auto()
    CANNOT_GO_ON = enum.auto()

    # -- the same failure again
    FAILS_EVERYWHERE = enum.auto()
    FAILED_TWICE = enum.auto()
    LOST_TOO_OFTEN = enum.auto()

    # -- a recovery that does not come to its end
    COULD_NOT_RESUME = enum.auto()
    NOT_RESUMED_IN_TIME = enum.auto()
    BOUNDARY_MISSED = enum.auto()
    GENERATIONS_FAILED = enum.auto()
    COORDINATOR_CHANGED = enum.auto()
    NO_PROGRESS = enum.auto()

    # -- strategies: why one is not taken
    NO_STRATEGY = enum.auto()
    NOT_ALLOWED = enum.auto()
    BUDGET_SPENT = enum.auto()
    NO_REPLACEMENT_FITS = enum.auto()
    UNLIKE = enum.auto()  # why a replacement cannot be made equal to its rank
    NO_REPLACEMENTS_LEFT = enum.auto()
    NO_HOST = enum.auto()
    NO_SPARES_OFFERED = enum.auto()
    SPARES_DIE_EARLY = enum.auto()
    HOST_SUSPECT = enum.auto()
    HOSTS_FULL = enum.auto()
    PLACES_TAKEN = enum.auto()
    NO_ROOM = enum.auto()
    NO_ROOM_FOR_WORLD = enum.auto()
    NO_STEP_YET = enum.auto()
    NOT_A_REPLICA = enum.auto()
    NO_WHOLE_REPLICA = enum.auto()
    RANKS_FILLED = enum.auto()
    NO_STATE_LEFT = enum.auto()
    NOTHING_TO_SAVE = enum.auto()
    NO_LIVE_TWIN = enum.auto()
    ONLY_OLDER_STATE = enum.auto()
    NOT_TRUSTED = enum.auto()
    NOTHING_SAVED = enum.auto()
    NOTHING_OLDER_SAVED = enum.auto()
    NOT_SAVED_BY_ALL = enum.auto()
    SAME_STATE = enum.auto()
    NO_CHECKPOINT = enum.auto()
    NO_OLDER_CHECKPOINT = enum.auto()
    NO_WHOLE_CHECKPOINT = enum.auto()

    # -- strategies: the one that is taken
    CHECKPOINTS_WANTED = enum.auto()
    COMMIT = enum.auto()
    RETRY = enum.auto()
    AT_BOUNDARY = enum.auto()
    APPLIED_BY_SOME = enum.auto()
    ALL_AT_FENCE = enum.auto()
    NOT_ALL_AT_FENCE = enum.auto()
    STATE_FROM_TWINS = enum.auto()
    COMES_BACK_TOO = enum.auto()
    DEGRADED = enum.auto()
    PEER_MEMORY = enum.auto()
    GOES_BACK_TO_SAVED = enum.auto()
    HAS_SAVED = enum.auto()
    KEEPS_COPY = enum.auto()
    STEP_RUNS_AGAIN = enum.auto()
    STEPS_RUN_AGAIN = enum.auto()
    RESTART = enum.auto()
    PROCESS_STUCK = enum.auto()
    NO_EQUAL_REPLACEMENT = enum.auto()
    STATE_IS_SAVED = enum.auto()
    BEGINS_ANEW = enum.auto()
    CHECKPOINT = enum.auto()
    REWIND = enum.auto()
    NOTHING_BELOW = enum.auto()

    # -- state that is bad, or differs
    NOT_FINITE = enum.auto()
    NOT_FINITE_BEFORE = enum.auto()
    BAD_STATE = enum.auto()
    BAD_ON_PROBATION = enum.auto()
    TWINS_DIFFER = enum.auto()
    OUTLIERS = enum.auto()
    UNDECIDABLE = enum.auto()
    AGREED_BEFORE = enum.auto()
    NEVER_AGREED = enum.auto()
    TWINS_STILL_DIFFER = enum.auto()

    # -- migration
    WILL_MOVE = enum.auto()
    DRAINED = enum.auto()
    PREPARES = enum.auto()
    PREPARES_FOR_ABSENT = enum.auto()
    MOVES = enum.auto()
    COMES_BACK = enum.auto()
    STILL_ABSENT = enum.auto()
    WHOLE_AGAIN = enum.auto()
    STAYS = enum.auto()
    STAYS_ABSENT = enum.auto()
    DRAIN_CALLED_OFF = enum.auto()
    UNDERSTUDY_LOST = enum.auto()

    # -- requests that are refused
    REFUSED = enum.auto()
    NOT_A_MEMBER = enum.auto()
    JOB_AT_END = enum.auto()
    NO_FIRST_STEP = enum.auto()
    UNKNOWN_REQUEST = enum.auto()
    NO_SUCH_RANK = enum.auto()
    NO_SUCH_HOST = enum.auto()
    TOO_MANY_SPARES = enum.auto()
    ALREADY_MOVING = enum.auto()
    ALREADY_DRAINED = enum.auto()
    RANKS_ABSENT = enum.auto()
    NO_SPARE = enum.auto()
    NO_ROOM_ELSEWHERE = enum.auto()
    HOST_IN_USE = enum.auto()
    OTHER_HOLDER = enum.auto()
    WOULD_END_THE_JOB = enum.auto()
    RECOVERING = enum.auto()
    TOO_FEW_HEALTHY = enum.auto()

    # -- spares
    POOL_LOW = enum.auto()

    # -- why a process is ended
    ENDED = enum.auto()
    OTHERS_WAIT = enum.auto()
    IN_SETUP = enum.auto()
    SETUP_TIMEOUT = enum.auto()
    RECOVERY_WAITS = enum.auto()
    WHILE_PREPARING = enum.auto()
    NOT_PREPARED_IN_TIME = enum.auto()
    SPARE_STOPPED = enum.auto()
    SURPLUS = enum.auto()
    CANNOT_BE_EQUAL = enum.auto()
    HANDOVER_FAILED = enum.auto()
    HANDED_OVER = enum.auto()
    RANK_GIVEN_AWAY = enum.auto()
    OTHERS_FINISHED = enum.auto()
    WORLD_STARTS_OVER = enum.auto()
    ALL_BEGIN_ANEW = enum.auto()

    # -- what is seen of members, and waited for
    SEEN_MOVING = enum.auto()
    SEEN_STOPPED = enum.auto()
    SEEN_DEAF = enum.auto()
    SEEN_TRACED = enum.auto()
    SEEN_BUSY = enum.auto()
    SEEN_BUSY_OUTSIDE = enum.auto()
    SEEN_WAITING = enum.auto()
    RANK_SEEN = enum.auto()
    RANKS_SEEN = enum.auto()
    LAST_SEEN = enum.auto()
    NOT_JOINED = enum.auto()
    DEADLOCK = enum.auto()
    LATE = enum.auto()
    WAITS_FOR_OTHERS = enum.auto()
    WAITS_FOR = enum.auto()
    NO_RANK_MOVES = enum.auto()
    NO_FIRST_STEP_YET = enum.auto()
    RECOVERY_WAITS_FOR = enum.auto()
    KEPT = enum.auto()
    ANSWERS = enum.auto()
    ONLY_HOLDER = enum.auto()
    NO_WARM_SPARE = enum.auto()
    INDISPENSABLE = enum.auto()


Value = Union[str, int, float, "Reason", tuple[Union[int, str, "Reason"], ...], None]
"""Of a field. Ranks are a tuple of numbers, names a tuple of strings, several reasons a tuple of reasons."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Made by `because`. `code`: the name of a `Code`, or one that only another version knows."""

    code: str
    fields: tuple[tuple[str, Value], ...] = ()

    def get(self, name: str) -> Value:
        """None: there is no such field."""
        for known, value in self.fields:
            if known == name:
                return value
        return None

    def all(self) -> Iterator["Reason"]:
        """This one, and those inside its fields."""
        yield self
        for _, value in self.fields:
            if isinstance(value, Reason):
                yield from value.all()
            elif isinstance(value, tuple):
                for part in value:
                    if isinstance(part, Reason):
                        yield from part.all()

    def has(self, code: Code) -> bool:
        """Is it this, or is this a part of it?"""
        return any(part.code == code for part in self.all())


def because(code: Code, /, **fields: Value) -> Reason:
    """The fields are those that the text of the code names; `tests/house` compares every call with it."""
    return Reason(code, tuple(fields.items()))


def fields_of(reason: Reason) -> dict[str, Any]:
    """As values of JSON: a reason in a field has its own `code` and `fields`."""
    return {name: _plain(value) for name, value in reason.fields}


def reason_of(code: str, fields: Mapping[str, Any]) -> Reason:
    """What `fields_of` told."""
    return Reason(code, tuple((name, _value(plain)) for name, plain in fields.items()))


def _plain(value: Value) -> Any:
    if isinstance(value, Reason):
        return {"code": str(value.code), "fields": fields_of(value)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return reason_of(plain["code"], plain["fields"])
    return tuple(_value(part) for part in plain) if isinstance(plain, list) else plain
