"""The words for every reason: the only place where sentences are made.

A text names its fields in braces, as `str.format` does, and parts its lines by ` // `: a sentence joins them with
semicolons, a terminal shows one below the other. What comes after a colon in the braces says how a value is shown:

    {seconds:.1f}          as `format` does
    {ranks:is|are}         the first word for one, the second for several; # is the value itself
    {where:? (#)}          only if there is a value
    {step:?in step #!none} with other words if there is none
    {held:,}               several in a row, with commas

Several ranks are named, and counted if there are many; several reasons are parted by semicolons.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from understudy.protocol.reasons import Code, Reason, Value

_LINE = " // "
_ONE_FIELD = re.compile(r"\{(\w+)\}")

TEXTS: Final[Mapping[str, str]] = {
    # -- words of people, processes and other versions
    Code.REQUESTED: "{text}",
    Code.STOP_REQUESTED: "{text}",
    Code.NEW_RUN: "the operator began a new run (--new-run)",
    Code.NO_COORDINATOR: "no coordinator was found within {seconds:g} s (--rendezvous-timeout), and no rank is here",
    Code.REFUSED_BY_COORDINATOR: "{text}",
    Code.TOLD: "{text}",
    Code.EVIDENCE: "{detector}: {text}{wish:? [it should be #]}",
    # -- how a process ended
    Code.EXITED: "{text}",
    Code.SIGNALLED: "{text}",
    Code.RAISED: "{text}",
    Code.DEVICE_LOST: "{text}",
    Code.DEVICE_REPORTED: "{cause}; its device reported {text}",
    Code.HUNG: "{text}",
    Code.DISMISSED: "{text}",
    # -- losses
    Code.RANK_LOST: "rank {rank} (member {member}) was lost: {cause}",
    Code.SPARE_LOST: "spare {member} was lost: {cause}",
    Code.HOST_LOST: "host {host} was lost with {ranks}: {why}",
    Code.SPARE_HOST_LOST: "host {host} was lost: {why}; it held no rank",
    Code.HOSTS_LOST: "{hosts}",
    Code.HOST_SILENT: "it was silent for {seconds:.1f} s",
    Code.LOST_WITH_AGENT: "{member} was lost with the agent of host {host}",
    Code.LOST_AT_THE_END: "{cause}, while the scripts came to their end",
    Code.LOST_CONTACT: "rank {rank} ({member}) lost contact: {text}",
    Code.NO_LOSS_KNOWN: "{cause} // no process was lost, so the groups are formed again",
    # -- hosts
    Code.HOST_JOINED: "host {host} has joined, with room for {count} spares",
    Code.HOST_BACK: "host {host} is back, with room for {count} spares",
    Code.HOSTS_SILENT: (
        "{silent} of {present} hosts fell silent at once: this coordinator may be cut off itself, so they have "
        "{patience:g} s to come back, instead of {usual:g} s"
    ),
    Code.HOSTS_PRESENT: "{count} of {wanted} hosts are there{hosts:? (#)}",
    Code.WAITING_FOR_HOSTS: "waiting for hosts: {present}",
    Code.HOSTS_MISSING: "no world within {limit:g} s (--setup-timeout): only {present}",
    Code.HOST_DRAINED: "host {host} is drained ({ranks:?#!it holds no rank}): {why}",
    Code.HOST_READMITTED: "host {host} is used again ({held:,}): {why}",
    Code.WAS_DRAINED: "it was drained",
    Code.WAS_SUSPECT: "it was under suspicion for {seconds:.0f} s more",
    Code.SPARES_HAD_DIED: "spares had died there before they were warm ({count} in a row)",
    Code.DEVICES_WERE_LOST: "{devices:device|devices} {devices:,} had been excluded",
    Code.SPARES_WANTED: "host {host} keeps {count} spares from now on, not {before}: {why}",
    # -- the world begins, or starts over
    Code.JOB_BEGINS: "the job begins",
    Code.BEGAN_WITH_CHECKPOINT: (
        "the job began with the state before step {step}, which an earlier run had written: no process of that run "
        "was left, so no other strategy was possible"
    ),
    Code.STARTED_OVER: "{cause} // a survivor was still before its first commit, so nothing is lost by beginning again",
    Code.CANNOT_START_OVER: "{cause} // {why}",
    Code.START_OVERS_SPENT: (
        "the world has started over {count} times without a first commit (limit {limit}, --max-restarts)"
    ),
    Code.NO_TWIN: "{ranks} of {world} {ranks:has|have} no twin: {cover}",
    Code.NO_COVER: (
        "no other rank holds the same bytes, so the loss of such a rank stops the job; more replicas would change "
        "that, or --peer-snapshot-every 1"
    ),
    Code.COVERED: (
        "peer memory covers {ranks:it|them}: saved every {every} steps, two copies per rank in memory of its own "
        "host and two on another host; {again:?at most # steps!no committed step} would run again "
        "(--peer-snapshot-every)"
    ),
    Code.COVERED_ON_OWN_HOST: (
        "peer memory covers {ranks:it|them}: saved every {every} steps, two copies per rank in memory, on its own "
        "host only: the loss of the host would stop the job; {again:?at most # steps!no committed step} would run "
        "again (--peer-snapshot-every)"
    ),
    # -- the job ends
    Code.ALL_FINISHED: "every rank has committed its last step",
    Code.ALL_SCRIPTS_ENDED: "every rank ended its script",
    Code.SCRIPT_FAILED: "rank {rank} ended its script with a failure: {cause}",
    Code.SCRIPT_ENDED_IN_RECOVERY: "rank {rank} ended its script while the world was being formed again",
    Code.SCRIPT_HAD_ENDED: (
        "{cause} // {ranks} had already ended {ranks:its script|their scripts}, so the world cannot be formed again"
    ),
    Code.CANNOT_GO_ON: "{cause} // {tried}",
    # -- the same failure again
    Code.FAILS_EVERYWHERE: (
        "rank {rank} failed {step:?in step #!outside its steps}, and any other process would fail there too: {cause}"
    ),
    Code.FAILED_TWICE: (
        "rank {rank} failed twice in a row {step:?in step #!outside its steps} with the same failure ({cause}); "
        "another replacement would meet it again"
    ),
    Code.LOST_TOO_OFTEN: (
        "rank {rank} was lost {count} times {step:?in step #!outside its steps} (limit {limit}, --max-deaths-per-step)"
    ),
    # -- a recovery that does not come to its end
    Code.COULD_NOT_RESUME: "member {member} could not resume: {text}",
    Code.NOT_RESUMED_IN_TIME: (
        "{count} members had not resumed, and none of them had made progress for {limit:g} s (--regroup-timeout)"
    ),
    Code.BOUNDARY_MISSED: "{count} members did not come to the boundary before step {step} in time",
    Code.GENERATIONS_FAILED: "{count} generations in a row did not resume",
    Code.COORDINATOR_CHANGED: "a new coordinator took over while the world was being formed again",
    Code.NO_PROGRESS: (
        "no progress: the world has resumed at step {step} {count} times without a new fault, and stands still "
        "again. {cause}. What the ranks were doing: {seen}"
    ),
    # -- strategies: why one is not taken
    Code.NO_STRATEGY: "no {strategy}: {why}",
    Code.NOT_ALLOWED: "it is not allowed (policy: {strategy})",
    Code.BUDGET_SPENT: "{limit:it was taken once|all # are used up} (policy: {strategy} budget)",
    Code.NO_REPLACEMENT_FITS: "{ranks}: {why}",
    Code.UNLIKE: "{text}",
    Code.NO_REPLACEMENTS_LEFT: "all {limit} replacements are used up (--max-replacements)",
    Code.NO_HOST: "no host is there",
    Code.NO_SPARES_OFFERED: "the job was started with --spares 0",
    Code.SPARES_DIE_EARLY: "{count} spares in a row died before they were warm: the host is not healthy",
    Code.HOST_SUSPECT: "host {host} is under suspicion",
    Code.HOSTS_FULL: "host {host} is full, and so is every other one",
    Code.PLACES_TAKEN: "every place of host {host} is taken, and of every other one",
    Code.TOO_FEW_DEVICES: "there are too few devices for {count} ranks: {lost:,} {lost:is|are} not used any more",
    Code.NO_DEVICE: "every device of host {host} has a rank{lost:? or was lost (#)}, and of every other one",
    Code.NO_ROOM: "there is no room for {count} ranks: every host is full or under suspicion",
    Code.NO_ROOM_FOR_WORLD: "there is no room for {count} ranks: a host was lost or is under suspicion",
    Code.NO_STEP_YET: "the world has no step behind it",
    Code.NOT_A_REPLICA: "{ranks} cannot be done without: only replicas of DDP and HSDP can",
    Code.NO_WHOLE_REPLICA: "no whole replica would be left",
    Code.RANKS_FILLED: "a process holds every rank",
    Code.NO_STATE_LEFT: "no live rank holds any state",
    Code.NOTHING_TO_SAVE: "no live rank holds any state that could be saved",
    Code.NO_LIVE_TWIN: "no live rank holds the same shard as rank {rank} (it has no twin)",
    Code.ONLY_OLDER_STATE: (
        "{why}, but {ranks} {ranks:holds|hold} it as it was before step {step}: older than what the others hold"
    ),
    Code.NOT_TRUSTED: "the state that came by it before step {step} is not trusted",
    Code.NOTHING_SAVED: "nothing is saved",
    Code.NOTHING_OLDER_SAVED: "nothing older is saved",
    Code.NOT_SAVED_BY_ALL: "no state is saved of every rank",
    Code.SAME_STATE: "it would begin with the same state",
    Code.NO_CHECKPOINT: "none was written",
    Code.NO_OLDER_CHECKPOINT: "none is older",
    Code.NO_WHOLE_CHECKPOINT: "none is whole",
    # -- strategies: the one that is taken
    Code.CHECKPOINTS_WANTED: "{cause} // {tried} // durable checkpoints are looked for",
    Code.COMMIT: "commit: {why} // {swap}",
    Code.RETRY: "retry: {why} // {swap}",
    Code.AT_BOUNDARY: "every rank has stopped before step {step} // {swap}",
    Code.APPLIED_BY_SOME: "step {step} was already applied by {count} of {survivors} survivors; {ranks} will follow",
    Code.ALL_AT_FENCE: "every survivor stands at the fence of step {step} with final gradients",
    Code.NOT_ALL_AT_FENCE: "{ranks} had not arrived at the fence of step {step}, so no rank passed it",
    Code.NO_RANK_PASSED_FENCE: "every survivor stands at the fence of step {step} and none has passed it; the "
    "gradients of {ranks} come from devices, and are not known to be final",
    Code.STATE_FROM_TWINS: "swap: {ranks} {ranks:takes its state|take their state} from ranks that hold the same bytes",
    Code.COMES_BACK_TOO: "{cause} // {ranks} {ranks:comes|come} back with it, for there are spares",
    Code.DEGRADED: (
        "no swap: {why} // the world goes on with {left} of {world} ranks at the same global batch, without {ranks}. "
        "Not bit-identical from now on; they come back when there are spares"
    ),
    Code.PEER_MEMORY: "{tried} // peer memory: {how}",
    Code.GOES_BACK_TO_SAVED: "every rank goes back to the state before step {step}, which all have saved",
    Code.HAS_SAVED: "{ranks} {ranks:has|have} saved the state before step {step}",
    Code.KEEPS_COPY: "rank {keeper} keeps a copy of rank {rank}'s{step:? state before step #}",
    Code.STEP_RUNS_AGAIN: "step {step} runs again",
    Code.STEPS_RUN_AGAIN: "steps {step} to {last} run again",
    Code.RESTART: (
        "no swap, no degrade, no peer memory: {why} // all processes begin anew with the state that they save now"
    ),
    Code.PROCESS_STUCK: "{count} generations in a row did not resume, so some process cannot be saved",
    Code.NO_EQUAL_REPLACEMENT: "no replacement can be made equal to {ranks}: {why}",
    Code.STATE_IS_SAVED: "the state before step {step} is saved, and then all processes begin anew // {why}",
    Code.BEGINS_ANEW: "{cause} // the state is saved, and every process begins anew",
    Code.CHECKPOINT: "{tried} // durable checkpoint: every rank loads the state before step {step}{again:?; #}",
    Code.REWIND: "every rank goes back to the state before step {step}, on which all twins agreed",
    Code.NOTHING_BELOW: "{plan} // there was nothing to step down to: {tried}",
    # -- state that is bad, or differs
    Code.NOT_FINITE: "{ranks} {ranks:holds|hold} parameters that are not finite before step {step}",
    Code.NOT_FINITE_BEFORE: (
        "{ranks} {ranks:holds|hold} parameters that are not finite where the world resumes, before step {step}. They "
        "were so before the loss, and this goes on"
    ),
    Code.BAD_STATE: "rank {rank} after step {step}: {text}",
    Code.BAD_ON_PROBATION: (
        "bad state on probation (steps {first} to {last}, after {strategy}{before:?, to which it had stepped down "
        "from #}): {why}"
    ),
    Code.TWINS_DIFFER: "{found} after step {step} // {since}",
    Code.OUTLIERS: "{ranks} {ranks:holds|hold} other bytes than most twins",
    Code.UNDECIDABLE: "{ranks} hold different bytes, and no majority shows which are right",
    Code.AGREED_BEFORE: "all agreed before step {step}",
    Code.NEVER_AGREED: "no state was agreed on before",
    Code.TWINS_STILL_DIFFER: "{cause} // to compute it again did not help",
    # -- migration
    Code.WILL_MOVE: "{ranks} will move: {why}",
    Code.DRAINED: "host {host} is drained: {why}",
    Code.PREPARES: "{member} prepares to take over rank {rank}: {why}",
    Code.PREPARES_FOR_ABSENT: "{member} prepares to take over rank {rank}, which is absent",
    Code.MOVES: "{ranks} {ranks:moves|move} before step {step}: {why}",
    Code.COMES_BACK: "{ranks} {ranks:comes|come} back before step {step}: {rest}",
    Code.STILL_ABSENT: "still absent: {ranks}",
    Code.WHOLE_AGAIN: "the world is whole again",
    Code.STAYS: "rank {rank} stays where it is: {why}. It was to move because: {wanted}",
    Code.STAYS_ABSENT: "rank {rank} stays absent: {why}",
    Code.DRAIN_CALLED_OFF: "the drain was called off",
    Code.UNDERSTUDY_LOST: "{member}, which prepared for it, was lost: {why}",
    # -- requests that are refused
    Code.REFUSED: "refused, because {why}. It was asked: {wanted}",
    Code.NOT_A_MEMBER: "{event} from {member}, which is not a member of generation {generation}",
    Code.JOB_AT_END: "the job is at its end",
    Code.NO_FIRST_STEP: "the world has not committed its first step yet; ask again later",
    Code.UNKNOWN_REQUEST: "a {request} is not known here",
    Code.NO_SUCH_RANK: "there is no {ranks:?#!such rank}: ranks are 0 to {last}",
    Code.NO_SUCH_HOST: "there is no host {host}; present are: {hosts}",
    Code.TOO_MANY_SPARES: "a host can keep 0 to {most} spares",
    Code.ALREADY_MOVING: "{ranks} {ranks:is|are} already being migrated",
    Code.ALREADY_DRAINED: "host {host} is already being drained",
    Code.RANKS_ABSENT: "{ranks} {ranks:is|are} absent: the world goes on without {ranks:it|them}",
    Code.NO_SPARE: "no spare is available: {why}",
    Code.NO_ROOM_ELSEWHERE: "there is no room elsewhere for {ranks}: {why}",
    Code.HOST_IN_USE: "nothing is held against host {host}: ranks may go there",
    Code.OTHER_HOLDER: "rank {rank} is held by {holder} now, and not by {member}",
    Code.WOULD_END_THE_JOB: "rank {rank} has no twin, and to end it would end the job; move it instead",
    Code.RECOVERING: "the world is being formed again right now",
    Code.TOO_FEW_HEALTHY: "only {count} of {world} ranks are healthy (--min-healthy)",
    # -- spares
    Code.POOL_LOW: "the pool is below its size",
    Code.SPARE_DEVICE: "spare {member} has device {device} of {host}, which no rank has, and keeps it",
    Code.SHADOW: (
        "spare {member} is a shadow on device {device} of {host}: the device of a rank, for when a process is lost and "
        "the device is well"
    ),
    # -- devices
    Code.DEVICE_EXCLUDED: "device {device} of {host} is not used any more: {why}",
    Code.DEVICE_ON_TRIAL: (
        "device {device} of {host} is used once more, because nothing says what is wrong with it: {why}"
    ),
    Code.OTHER_DEVICE: "rank {rank} on device {device} of {host}, before on device {former} of {home}",
    Code.ON_OTHER_DEVICES: "{ranks} // sums may differ in the last bit on another device",
    # -- why a process is ended
    Code.ENDED: "{seen:?#, }{why}",
    Code.OTHERS_WAIT: "while others wait for it",
    Code.IN_SETUP: "in the setup of a new world",
    Code.SETUP_TIMEOUT: "no first step within {limit:g} s (--setup-timeout)",
    Code.RECOVERY_WAITS: "while the recovery waits for it",
    Code.WHILE_PREPARING: "while it prepared",
    Code.NOT_PREPARED_IN_TIME: "it was not prepared within {limit:g} s (--warmup-timeout)",
    Code.SPARE_STOPPED: "this spare stays stopped, and another one takes its place",
    Code.SURPLUS: "there are more spares than wanted",
    Code.ON_LOST_DEVICE: "device {device} of {host}, on which it is, is not used any more",
    Code.CANNOT_BE_EQUAL: "it cannot be made equal to rank {rank}: {text}",
    Code.HANDOVER_FAILED: "{cause}; it could not hand its rank over",
    Code.HANDED_OVER: "it has handed rank {rank} over",
    Code.RANK_GIVEN_AWAY: "its rank was given to another process while host {host} was away",
    Code.UNKNOWN_MEMBER: "no such member is known to the job",
    Code.OTHERS_FINISHED: "the others are at the end of their steps",
    Code.WORLD_STARTS_OVER: "the world starts over",
    Code.ALL_BEGIN_ANEW: "all processes begin anew",
    # -- what is seen of members, and waited for
    Code.SEEN_MOVING: "moving",
    Code.SEEN_STOPPED: "stopped (SIGSTOP) for {seconds:.1f} s",
    Code.SEEN_DEAF: "no answer for {seconds:.1f} s: something holds its interpreter lock",
    Code.SEEN_TRACED: "held by a debugger",
    Code.SEEN_BUSY: "busy for {seconds:.0f} s{where:? (#)}",
    Code.SEEN_BUSY_OUTSIDE: "busy outside of steps for {seconds:.0f} s{where:? (#)}",
    Code.SEEN_WAITING: "waiting for {seconds:.0f} s{where:? (#)}",
    Code.RANK_SEEN: "rank {rank} ({member}): {seen}",
    Code.RANKS_SEEN: "{ranks}: {seen}",
    Code.LAST_SEEN: "rank {rank}: {seen:?#!not seen}",
    Code.NOT_JOINED: "{ranks} not yet at understudy.join()",
    Code.DEADLOCK: (
        "all ranks have waited for each other for {seconds:.1f} s (--step-timeout-min, --step-timeout-factor): {seen}"
    ),
    Code.LATE: "{seen} // all others wait for it, and it is replaced unless it comes back now",
    Code.WAITS_FOR_OTHERS: "{ranks} wait for others",
    Code.WAITS_FOR: "{ranks} {ranks:waits|wait} for {others}: {seen}",
    Code.NO_RANK_MOVES: "no rank makes progress, and none is ended for that: {seen}",
    Code.NO_FIRST_STEP_YET: (
        "no first step after {seconds:.0f} s (limit {limit:g} s, --setup-timeout): {seen:?#!nothing is known of the "
        "ranks yet}"
    ),
    Code.RECOVERY_WAITS_FOR: "the recovery waits for {ranks}: {seen:?#!nothing is known of them}",
    Code.KEPT: "{seen}; it is waited for, because {why}",
    Code.ANSWERS: "{seen}; it answers, and is waited for ({flag} {limit:g} s)",
    Code.ONLY_HOLDER: "no other rank holds the state of rank {rank}",
    Code.NO_WARM_SPARE: "no warm spare is there for it",
    Code.INDISPENSABLE: "there is no spare for it ({spare}), and the world cannot do without it ({world})",
}


def sentence(reason: Reason) -> str:
    """In one line."""
    return "; ".join(lines(reason))


def lines(reason: Reason) -> list[str]:
    """One for what happened, and one for each strategy that was thought of."""
    text = TEXTS.get(reason.code)
    if text is None:
        return [f"{reason.code} ({', '.join(f'{name} {_Shown(value)}' for name, value in reason.fields)})"]
    fields = dict(reason.fields)
    shown: dict[str, object] = {name: _Shown(value) for name, value in fields.items()}
    found: list[str] = []
    for line in text.split(_LINE):
        alone = _ONE_FIELD.fullmatch(line)
        value = fields[alone[1]] if alone is not None else None
        if isinstance(value, Reason):
            found += lines(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Reason):
            found += [inner for part in value if isinstance(part, Reason) for inner in lines(part)]
        elif alone is None or value is not None:
            found.append(line.format(**shown))
    return found


def is_known(reason: Reason) -> bool:
    """Or does it come from a version that has more codes?"""
    return all(part.code in TEXTS for part in reason.all())


def named(ranks: Sequence[int]) -> str:
    """A few of them by number, the rest counted."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


class _Shown:
    """A value as the braces of a text ask for it; see the module's text."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def __format__(self, how: str) -> str:
        value = self._value
        if how.startswith("?"):
            words, _, without = how[1:].partition("!")
            missing = value is None or value in ("", ())
            return without if missing else words.replace("#", str(self))
        if "|" in how:
            one, _, several = how.partition("|")
            single = len(value) == 1 if isinstance(value, tuple) else value == 1
            return (one if single else several).replace("#", str(self))
        if how == ",":
            assert isinstance(value, tuple)
            return ", ".join(str(_Shown(part)) for part in value)
        return format(value, how) if how else str(self)

    def __str__(self) -> str:
        value = self._value
        if isinstance(value, Reason):
            return sentence(value)
        if not isinstance(value, tuple):
            return str(value)
        if value and isinstance(value[0], int):
            return named([part for part in value if isinstance(part, int)])
        joint = "; " if value and isinstance(value[0], Reason) else ", "
        return joint.join(str(_Shown(part)) for part in value)
