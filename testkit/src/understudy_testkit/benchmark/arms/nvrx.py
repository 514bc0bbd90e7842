"""The arm of NVIDIA's resiliency extension: in-process restart with reserve ranks."""

import importlib.util
import sys

from understudy_testkit.benchmark.arms.arm import Arm, Command, RunPaths
from understudy_testkit.benchmark.scenario import Scenario

_LAUNCHER = "understudy_testkit.benchmark.arms.nvrx_launcher"


def _command(_: Scenario, place: RunPaths) -> Command:
    return Command(arguments=(sys.executable, "-m", _LAUNCHER, *place.worker_arguments))


def _missing() -> str | None:
    if importlib.util.find_spec("nvidia_resiliency_ext"):
        return None
    return "nvidia_resiliency_ext is not installed (pip install nvidia-resiliency-ext)"


NVRX = Arm(
    name="nvrx",
    title="NVIDIA resiliency extension, in-process restart with reserve ranks",
    settings={
        "plain processes, none started later": "its guide: torchrun ends all when one dies; it starts none itself",
        "MaxActiveWorldSize(ranks), FillGaps": "spares are its reserve ranks; survivors keep their ranks",
        "as many spares as faults": "it starts no process later, so this is its best case; they cost memory",
        "no minimum of ranks": "with more deaths than spares it goes on with fewer ranks; it would end otherwise",
        "store in a process apart (store_factory)": "its guide names this against the loss of rank 0, the default host",
        "model, optimizer and data made once": "as in its optimal example: only the process group is made again",
        "one step before the wrapped function": "libraries are loaded before a recovery, in the spares too",
        "gc.freeze() before the wrapped function": "it collects garbage in each restart; some 0.2 s per pass otherwise",
        "DDP let go of when the function is left": "its connections close, so ranks that wait for it fail at once",
        "state from a checkpoint after a fault": "its guide: state may be corrupt when a collective was interrupted",
        "checkpoint by rank 0, written in the background": "saving costs the training loop only the copy",
        "finalize: wait for the writer": "all ranks then find the same checkpoint; its guide names finalize for this",
        "gloo timeout 3 s": "its guide: gloo collectives cannot be aborted, a short timeout is the way around that",
        "soft_timeout 2 s (default 60)": "steps take a fraction of a second",
        "hard_timeout 5 s (default 90)": "a stopped rank is killed then; survivors must have left gloo (3 s) before",
        "termination_grace_time 0 (default 5 s)": "its guide: safe without a handler of SIGTERM",
        "monitor_process_interval 0.1 s (default 1)": "a death is seen within 0.1 s; longer is for many workers",
        "monitor_thread_interval 0.2 s (default 1)": "the thread ends within 0.2 s; longer is for many workers",
        "progress_watchdog_interval 0.2 s (default 1)": "spares wake up within 0.2 s to take part in a restart",
        "last_call_wait 0 (default 1 s)": "it only collects causes; the dead ranks are read after a barrier of all",
        "call_wrapper.ping() in every step": "a rank that runs but makes no steps is noticed too",
        "TORCH_CPP_LOG_LEVEL=error": "its guide: waiting in the store would print warnings all the time",
    },
    command=_command,
    missing=_missing,
    packages=("torch", "nvidia-resiliency-ext"),
)
