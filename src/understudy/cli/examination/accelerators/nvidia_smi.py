"""What nvidia-smi says. Untested with a driver: written from its documentation, tried with made-up answers."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LIMIT = 30.0
_QUERIED = (
    *("index", "name", "driver_version", "memory.total", "mig.mode.current", "persistence_mode", "ecc.mode.current"),
    *("ecc.errors.uncorrected.volatile.total", "compute_mode"),
)
_UNKNOWN = ("[N/A]", "N/A", "[Not Supported]", "")


@dataclass(frozen=True, slots=True)
class Gpu:
    """As the tool writes it, in the order of `_QUERIED`. Empty: it does not say."""

    index: str
    name: str
    driver: str
    mib: str
    mig: str
    persistence: str
    ecc: str
    uncorrected: str
    compute_mode: str


def there() -> bool:
    return shutil.which("nvidia-smi") is not None


def ask(*arguments: str) -> str:
    """Its answer, or what went wrong, as text."""
    try:
        asked = subprocess.run(
            ("nvidia-smi", *arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}\n"
    return asked.stdout if asked.returncode == 0 else f"nvidia-smi: {asked.stdout}{asked.stderr}"


def gpus() -> list[Gpu]:
    return parse(ask(f"--query-gpu={','.join(_QUERIED)}", "--format=csv,noheader,nounits"))


def parse(answer: str) -> list[Gpu]:
    found = []
    for line in answer.splitlines():
        values = ["" if value in _UNKNOWN else value for value in (part.strip() for part in line.split(","))]
        if len(values) == len(_QUERIED) and values[0].isdecimal():
            found.append(Gpu(*values))
    return found


def index_of(place: int, environment: Mapping[str, str]) -> int:
    """What the tool calls the device at this place of those that a process sees."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[place]) if place < len(visible) and visible[place].strip().isdecimal() else place


def used_bytes(index: int) -> int:
    answer = ask(f"--id={index}", "--query-gpu=memory.used", "--format=csv,noheader,nounits").strip()
    return int(answer) << 20 if answer.isdecimal() else 0


def processes() -> dict[int, int]:
    """Those that use a GPU, with the bytes that each has there."""
    found: dict[int, int] = {}
    for line in ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").splitlines():
        with contextlib.suppress(ValueError):
            pid, mib = (int(part) for part in line.split(","))
            found[pid] = found.get(pid, 0) + (mib << 20)
    return found


def until_free(index: int, below: float, within: float = 5.0) -> float | None:
    """Seconds until less than `below` bytes are in use."""
    began = time.monotonic()
    while time.monotonic() - began < within:
        if used_bytes(index) < below:
            return time.monotonic() - began
        time.sleep(0.1)
    return None


def links(topology: str) -> Sequence[str]:
    """The kinds of ways between two GPUs that `nvidia-smi topo -m` shows."""
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    return sorted({cell for row in rows for cell in row[1 : 1 + len(rows)] if cell != "X"})
