"""The kernel's word on a process, from /proc."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """`state`: one letter (R, S, D, T, t, Z ...), or an empty string when there is no such process. `traced`: a
    debugger is attached. `starved`: its control thread would run, but waits for a processor or a disk. `queued`: the
    seconds for which its main thread has waited for a processor so far (0 where the kernel does not count them)."""

    state: str = ""
    traced: bool = False
    starved: bool = False
    queued: float = 0.0


def kernel_view(pid: int, control_thread: int | None = None) -> Kernel:
    control = "" if control_thread is None else _state_in(f"/proc/{pid}/task/{control_thread}/stat")
    return Kernel(process_state(pid), _is_traced(pid), control in ("R", "D"), _queued(pid))


def process_state(pid: int) -> str:
    """One letter, or an empty string when there is no such process."""
    return _state_in(f"/proc/{pid}/stat")


def _state_in(path: str) -> str:
    try:
        with open(path, "rb") as file:
            line = file.read()
    except OSError:
        return ""
    # The name of the program is in brackets and may itself contain brackets and blanks.
    rest = line.rpartition(b")")[2].split()
    return rest[0].decode("ascii", "replace") if rest else ""


def _is_traced(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except OSError:
        return False
    return fields.get(b"TracerPid", b"0").strip() not in (b"0", b"")


def _queued(pid: int) -> float:
    """The second number is of the time in a run queue, in nanoseconds."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def is_stopped(state: str) -> bool:
    """Stopped by a signal, or held by a debugger."""
    return state in ("T", "t")
