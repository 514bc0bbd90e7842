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
    REQUESTED = "requested"  # the words of a person, a monitor or a detector that asked for something
    STOP_REQUESTED = "stop_requested"  # a person or a signal ended the job
    NEW_RUN = "new_run"
    NO_COORDINATOR = "no_coordinator"  # a host without ranks has looked for one long enough
    REFUSED_BY_COORDINATOR = "refused_by_coordinator"  # a host takes no part in the job
    TOLD = "told"  # words of another version, whose code is not known here
    EVIDENCE = "evidence"

    # -- how a process ended
    EXITED = "exited"  # with an exit code
    SIGNALLED = "signalled"  # by a signal that did not come from here
    RAISED = "raised"  # the script raised an exception
    DEVICE_LOST = "device_lost"  # its device could not be used any more, and it ended itself
    DEVICE_REPORTED = "device_reported"  # its device's driver had said something
    HUNG = "hung"  # it made no progress, and was ended for that
    DISMISSED = "dismissed"  # it was ended for another reason

    # -- losses
    RANK_LOST = "rank_lost"
    SPARE_LOST = "spare_lost"
    HOST_LOST = "host_lost"
    SPARE_HOST_LOST = "spare_host_lost"
    HOSTS_LOST = "hosts_lost"  # several at once
    HOST_SILENT = "host_silent"
    LOST_WITH_AGENT = "lost_with_agent"
    LOST_AT_THE_END = "lost_at_the_end"
    LOST_CONTACT = "lost_contact"
    NO_LOSS_KNOWN = "no_loss_known"

    # -- hosts
    HOST_JOINED = "host_joined"
    HOST_BACK = "host_back"
    HOSTS_SILENT = "hosts_silent"
    HOSTS_PRESENT = "hosts_present"
    WAITING_FOR_HOSTS = "waiting_for_hosts"
    HOSTS_MISSING = "hosts_missing"
    HOST_DRAINED = "host_drained"
    HOST_READMITTED = "host_readmitted"
    WAS_DRAINED = "was_drained"
    WAS_SUSPECT = "was_suspect"
    SPARES_HAD_DIED = "spares_had_died"
    DEVICES_WERE_LOST = "devices_were_lost"
    SPARES_WANTED = "spares_wanted"

    # -- the world begins, or starts over
    JOB_BEGINS = "job_begins"
    BEGAN_WITH_CHECKPOINT = "began_with_checkpoint"
    STARTED_OVER = "started_over"
    CANNOT_START_OVER = "cannot_start_over"
    START_OVERS_SPENT = "start_overs_spent"
    NO_TWIN = "no_twin"
    NO_COVER = "no_cover"
    COVERED = "covered"
    COVERED_ON_OWN_HOST = "covered_on_own_host"

    # -- the job ends
    ALL_FINISHED = "all_finished"
    ALL_SCRIPTS_ENDED = "all_scripts_ended"
    SCRIPT_FAILED = "script_failed"
    SCRIPT_ENDED_IN_RECOVERY = "script_ended_in_recovery"
    SCRIPT_HAD_ENDED = "script_had_ended"
    CANNOT_GO_ON = "cannot_go_on"

    # -- the same failure again
    FAILS_EVERYWHERE = "fails_everywhere"
    FAILED_TWICE = "failed_twice"
    LOST_TOO_OFTEN = "lost_too_often"

    # -- a recovery that does not come to its end
    COULD_NOT_RESUME = "could_not_resume"
    NOT_RESUMED_IN_TIME = "not_resumed_in_time"
    BOUNDARY_MISSED = "boundary_missed"
    GENERATIONS_FAILED = "generations_failed"
    COORDINATOR_CHANGED = "coordinator_changed"
    NO_PROGRESS = "no_progress"

    # -- strategies: why one is not taken
    NO_STRATEGY = "no_strategy"
    NOT_ALLOWED = "not_allowed"
    BUDGET_SPENT = "budget_spent"
    NO_REPLACEMENT_FITS = "no_replacement_fits"
    UNLIKE = "unlike"  # why a replacement cannot be made equal to its rank
    NO_REPLACEMENTS_LEFT = "no_replacements_left"
    NO_HOST = "no_host"
    NO_SPARES_OFFERED = "no_spares_offered"
    SPARES_DIE_EARLY = "spares_die_early"
    HOST_SUSPECT = "host_suspect"
    HOSTS_FULL = "hosts_full"
    PLACES_TAKEN = "places_taken"
    NO_DEVICE = "no_device"  # every device of a host has a rank, or was lost
    TOO_FEW_DEVICES = "too_few_devices"
    NO_ROOM = "no_room"
    NO_ROOM_FOR_WORLD = "no_room_for_world"
    NO_STEP_YET = "no_step_yet"
    NOT_A_REPLICA = "not_a_replica"
    NO_WHOLE_REPLICA = "no_whole_replica"
    RANKS_FILLED = "ranks_filled"
    NO_STATE_LEFT = "no_state_left"
    NOTHING_TO_SAVE = "nothing_to_save"
    NO_LIVE_TWIN = "no_live_twin"
    ONLY_OLDER_STATE = "only_older_state"
    NOT_TRUSTED = "not_trusted"
    NOTHING_SAVED = "nothing_saved"
    NOTHING_OLDER_SAVED = "nothing_older_saved"
    NOT_SAVED_BY_ALL = "not_saved_by_all"
    SAME_STATE = "same_state"
    NO_CHECKPOINT = "no_checkpoint"
    NO_OLDER_CHECKPOINT = "no_older_checkpoint"
    NO_WHOLE_CHECKPOINT = "no_whole_checkpoint"

    # -- strategies: the one that is taken
    CHECKPOINTS_WANTED = "checkpoints_wanted"
    COMMIT = "commit"
    RETRY = "retry"
    AT_BOUNDARY = "at_boundary"
    APPLIED_BY_SOME = "applied_by_some"
    ALL_AT_FENCE = "all_at_fence"
    NOT_ALL_AT_FENCE = "not_all_at_fence"
    NO_RANK_PASSED_FENCE = "no_rank_passed_fence"
    STATE_FROM_TWINS = "state_from_twins"
    COMES_BACK_TOO = "comes_back_too"
    DEGRADED = "degraded"
    PEER_MEMORY = "peer_memory"
    GOES_BACK_TO_SAVED = "goes_back_to_saved"
    HAS_SAVED = "has_saved"
    KEEPS_COPY = "keeps_copy"
    STEP_RUNS_AGAIN = "step_runs_again"
    STEPS_RUN_AGAIN = "steps_run_again"
    RESTART = "restart"
    PROCESS_STUCK = "process_stuck"
    NO_EQUAL_REPLACEMENT = "no_equal_replacement"
    STATE_IS_SAVED = "state_is_saved"
    BEGINS_ANEW = "begins_anew"
    CHECKPOINT = "checkpoint"
    REWIND = "rewind"
    NOTHING_BELOW = "nothing_below"

    # -- state that is bad, or differs
    NOT_FINITE = "not_finite"
    NOT_FINITE_BEFORE = "not_finite_before"
    BAD_STATE = "bad_state"
    BAD_ON_PROBATION = "bad_on_probation"
    TWINS_DIFFER = "twins_differ"
    OUTLIERS = "outliers"
    UNDECIDABLE = "undecidable"
    AGREED_BEFORE = "agreed_before"
    NEVER_AGREED = "never_agreed"
    TWINS_STILL_DIFFER = "twins_still_differ"

    # -- migration
    WILL_MOVE = "will_move"
    DRAINED = "drained"
    PREPARES = "prepares"
    PREPARES_FOR_ABSENT = "prepares_for_absent"
    MOVES = "moves"
    COMES_BACK = "comes_back"
    STILL_ABSENT = "still_absent"
    WHOLE_AGAIN = "whole_again"
    STAYS = "stays"
    STAYS_ABSENT = "stays_absent"
    DRAIN_CALLED_OFF = "drain_called_off"
    UNDERSTUDY_LOST = "understudy_lost"

    # -- requests that are refused
    REFUSED = "refused"
    NOT_A_MEMBER = "not_a_member"
    JOB_AT_END = "job_at_end"
    NO_FIRST_STEP = "no_first_step"
    UNKNOWN_REQUEST = "unknown_request"
    NO_SUCH_RANK = "no_such_rank"
    NO_SUCH_HOST = "no_such_host"
    TOO_MANY_SPARES = "too_many_spares"
    ALREADY_MOVING = "already_moving"
    ALREADY_DRAINED = "already_drained"
    RANKS_ABSENT = "ranks_absent"
    NO_SPARE = "no_spare"
    NO_ROOM_ELSEWHERE = "no_room_elsewhere"
    HOST_IN_USE = "host_in_use"
    OTHER_HOLDER = "other_holder"
    WOULD_END_THE_JOB = "would_end_the_job"
    RECOVERING = "recovering"
    TOO_FEW_HEALTHY = "too_few_healthy"

    # -- spares
    POOL_LOW = "pool_low"
    SPARE_DEVICE = "spare_device"  # a spare has a device of its own
    SHADOW = "shadow"  # a spare is an idle process on the device of a rank

    # -- devices
    DEVICE_EXCLUDED = "device_excluded"  # on its host, for every rank and spare
    DEVICE_ON_TRIAL = "device_on_trial"  # used once more, because its fault is not known
    OTHER_DEVICE = "other_device"
    ON_OTHER_DEVICES = "on_other_devices"

    # -- why a process is ended
    ENDED = "ended"
    OTHERS_WAIT = "others_wait"
    IN_SETUP = "in_setup"
    SETUP_TIMEOUT = "setup_timeout"
    RECOVERY_WAITS = "recovery_waits"
    WHILE_PREPARING = "while_preparing"
    NOT_PREPARED_IN_TIME = "not_prepared_in_time"
    SPARE_STOPPED = "spare_stopped"
    SURPLUS = "surplus"
    ON_LOST_DEVICE = "on_lost_device"
    CANNOT_BE_EQUAL = "cannot_be_equal"
    HANDOVER_FAILED = "handover_failed"
    HANDED_OVER = "handed_over"
    RANK_GIVEN_AWAY = "rank_given_away"
    UNKNOWN_MEMBER = "unknown_member"
    OTHERS_FINISHED = "others_finished"
    WORLD_STARTS_OVER = "world_starts_over"
    ALL_BEGIN_ANEW = "all_begin_anew"

    # -- what is seen of members, and waited for
    SEEN_MOVING = "seen_moving"
    SEEN_STOPPED = "seen_stopped"
    SEEN_DEAF = "seen_deaf"
    SEEN_TRACED = "seen_traced"
    SEEN_BUSY = "seen_busy"
    SEEN_BUSY_OUTSIDE = "seen_busy_outside"
    SEEN_WAITING = "seen_waiting"
    RANK_SEEN = "rank_seen"
    RANKS_SEEN = "ranks_seen"
    LAST_SEEN = "last_seen"
    NOT_JOINED = "not_joined"
    DEADLOCK = "deadlock"
    LATE = "late"
    WAITS_FOR_OTHERS = "waits_for_others"
    WAITS_FOR = "waits_for"
    NO_RANK_MOVES = "no_rank_moves"
    NO_FIRST_STEP_YET = "no_first_step_yet"
    RECOVERY_WAITS_FOR = "recovery_waits_for"
    KEPT = "kept"
    ANSWERS = "answers"
    ONLY_HOLDER = "only_holder"
    NO_WARM_SPARE = "no_warm_spare"
    INDISPENSABLE = "indispensable"


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
