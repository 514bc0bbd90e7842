"""What a process of a rank can be asked for: functions that get what it holds and arguments, and return what JSON has.

By name, so that a process loads only what it is asked for. Here: using the device and its communicators through the
seams, and measuring. Never here: judging; that is for the parts.
"""

from collections.abc import Mapping

_HERE = __name__

VERBS: Mapping[str, str] = {
    verb: f"{_HERE}.{module}:{verb}"
    for module, verbs in {
        "setting": ("look_around", "host_store", "take"),
        "groups": (
            "make",
            "handles",
            "connect",
            "all_reduce",
            "sums",
            "complete",
            "abandon",
            "drain",
            "probe",
            "usage",
        ),
        "training": ("begin_training", "step", "digest", "place"),
        "device": ("fence_cost", "found_inf", "digests", "was_forked_well"),
        "cuda": ("pinned_word", "copies", "context", "ballast"),
    }.items()
    for verb in verbs
}
