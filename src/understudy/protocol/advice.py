"""What a person can do about a refusal or a stop, by the code of its reason.

Knows flags and commands, which it names. Shown by the terminal, the HTTP API and the reference of codes.
"""

from collections.abc import Mapping
from typing import Final

from understudy.protocol.reasons import Code, Reason

ADVICE: Final[Mapping[str, str]] = {
    # -- requests
    Code.TOO_FEW_HEALTHY: "wait until the ranks that are being replaced are back, then ask again",
    Code.NO_SPARE: "give the job a spare (POST /v1/actions/spares, or a host with --spare-host), then ask again",
    Code.NO_ROOM_ELSEWHERE: "add a host or spares (`understudy run --spare-host`), then ask again",
    Code.RECOVERING: "wait for the end of the recovery (`understudy status`), then ask again",
    Code.ALREADY_MOVING: "follow it with `understudy events --follow`",
    Code.ALREADY_DRAINED: "follow it with `understudy events --follow`",
    Code.WOULD_END_THE_JOB: "use `understudy migrate`: the process hands its own state over before it ends",
    Code.OTHER_HOLDER: "look at `understudy status`; the process that you mean is gone already",
    Code.NO_SUCH_HOST: "`understudy status` names the hosts",
    Code.NO_SUCH_RANK: "`understudy status` names the ranks",
    Code.JOB_AT_END: "`understudy explain RUN_DIR` tells its story",
    Code.NO_FIRST_STEP: "wait until `understudy status` says training",
    # -- stops
    Code.EXITED: "the process ended itself, without a traceback: see its output above",
    Code.TOO_FEW_DEVICES: "add a host; when an excluded device is well again, `understudy undrain HOST` uses it",
    Code.NO_DEVICE: "add a host; when an excluded device is well again, `understudy undrain HOST` uses it",
    Code.DEVICE_LOST: "see its output above; if the script's own kernels are right, look at the device and its driver",
    Code.FAILED_TWICE: "the script itself fails: see its traceback above, correct it and start again",
    Code.NO_PROGRESS: "the ranks do not do the same: see above where each of them stands",
    Code.NO_LIVE_TWIN: "give --peer-snapshot-every 1 (copies in the host's memory), use replicas, or --checkpoint-dir",
    Code.NO_SPARES_OFFERED: "start with --spares 1 or more, so that a lost rank can be replaced",
    Code.LOST_TOO_OFTEN: "if the losses were not the script's fault, raise the limit that is named above",
    Code.NO_REPLACEMENTS_LEFT: "if the losses were not the script's fault, raise the limit that is named above",
    Code.START_OVERS_SPENT: "if the losses were not the script's fault, raise the limit that is named above",
    Code.SPARES_DIE_EARLY: "look at the spares' output above; the host may be short of memory",
    Code.NO_STATE_LEFT: "every copy of the state was lost: start again from your last checkpoint",
    Code.SCRIPT_FAILED: "see the output of that rank above",
    Code.SCRIPT_ENDED_IN_RECOVERY: "see the output of that rank above",
    Code.SCRIPT_HAD_ENDED: "see the output of that rank above",
}
"""The first of them that is a part of the reason."""


def advice_on(reason: Reason, otherwise: str) -> str:
    """`otherwise`: where there is no better advice."""
    said = {part.code for part in reason.all()}
    return next((text for code, text in ADVICE.items() if code in said), otherwise)
