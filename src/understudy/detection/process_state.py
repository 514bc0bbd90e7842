"""The kernel's word on a process, from /proc."""


def process_state(pid: int) -> str:
    """One letter (R, S, D, T, t, Z ...), or an empty string when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return ""
    # The name of the program is in brackets and may itself contain brackets and blanks.
    rest = line.rpartition(b")")[2].split()
    return rest[0].decode("ascii", "replace") if rest else ""


def is_stopped(state: str) -> bool:
    """Stopped by a signal or held by a debugger."""
    return state in ("T", "t")
