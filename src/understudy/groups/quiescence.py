"""Does any thread of this process still run, or do they all wait?

A connection that breaks while gloo is about to send on it makes that send fail without a word, and a thread that waits
for it sleeps until the group's timeout. When all threads wait, none is about to send, and a thread that waits to
receive is woken. So connections are broken in quiescence. A rank that is cut off from its world comes to it within
milliseconds.
"""

import os
import threading

_ALWAYS_AWAKE = "gloo_tcp_loop"  # looks at its connections a hundred times a second
_RUNNING = "RD"  # states of a thread that is not waiting for another one


class Quiescence:
    """Between two calls of `reached`: has no thread run, except the one that asks?"""

    def __init__(self) -> None:
        self._former: dict[str, str] | None = None

    def reached(self) -> bool:
        now = _threads()
        former, self._former = self._former, now
        return now is not None and now == former


def _threads() -> dict[str, str] | None:
    """Thread -> how often it was switched so far. None when one is running now, or when that cannot be told."""
    found: dict[str, str] = {}
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return None  # no descriptor is free
    for thread in threads:
        if int(thread) == threading.get_native_id():
            continue
        try:
            with open(f"/proc/self/task/{thread}/status") as file:
                lines = file.read().splitlines()
        except OSError:
            continue  # it has just ended
        if lines[0].endswith(_ALWAYS_AWAKE):
            continue
        values = dict(line.split(":", 1) for line in lines)
        if values["State"].strip()[0] in _RUNNING:
            return None
        found[thread] = values["voluntary_ctxt_switches"] + values["nonvoluntary_ctxt_switches"]
    return found
