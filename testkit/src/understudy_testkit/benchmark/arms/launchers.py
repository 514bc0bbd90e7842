"""The arms that are started by a launcher for all ranks: torchrun (bare, restart) and `understudy run`."""

import sys

from understudy_testkit.benchmark.arms.arm import Arm, Command, RunPaths
from understudy_testkit.benchmark.scenario import Scenario

_WORKERS = "understudy_testkit.benchmark.workers"
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def _torchrun(scenario: Scenario, place: RunPaths, *flags: str) -> tuple[str, ...]:
    logs = ("--log-dir", str(place.folder / "torchrun"))  # it would leave a folder among the temporary ones
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", *logs)
    return (*launcher, "--nproc-per-node", str(scenario.work.ranks), *flags)


def _bare(scenario: Scenario, place: RunPaths) -> Command:
    arguments = (*_torchrun(scenario, place), "-m", f"{_WORKERS}.bare", *place.worker_arguments)
    return Command(arguments=arguments)


def _restart(scenario: Scenario, place: RunPaths) -> Command:
    flags = ("--max-restarts", "100", "--monitor-interval", "0.1")
    arguments = (*_torchrun(scenario, place, *flags), "-m", f"{_WORKERS}.restart", *place.worker_arguments)
    return Command(arguments=arguments, environment=_OWN_STORE)


def _understudy(scenario: Scenario, place: RunPaths) -> Command:
    run = (sys.executable, "-m", "understudy", "run", "--nproc-per-node", str(scenario.work.ranks))
    flags = (
        "--spares",
        str(scenario.spares),
        "--run-dir",
        str(place.folder / "understudy"),
        "--step-timeout-min",
        "2.0",
    )
    start = ("--fork-initial-ranks", "never")
    return Command(arguments=(*run, *flags, *start, "-m", f"{_WORKERS}.understudy", *place.worker_arguments))


BARE = Arm(
    name="bare",
    title="torchrun, no protection and no faults: the limit",
    settings={},
    command=_bare,
    modes=("ddp", "hsdp"),
    survives_faults=False,
)
RESTART = Arm(
    name="restart",
    title="torchrun --max-restarts with torch.distributed.checkpoint",
    settings={
        "--max-restarts 100": "more than there are faults",
        "--monitor-interval 0.1": "the default; a death is seen within 0.1 s",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1": "without it some restarts hang on stale addresses in the agent's store",
        "asynchronous saves (dcp.async_save)": "saving costs the training loop only the copy",
        "group timeout 10 s": "the default of 30 min would make a hang cost 30 min; steps take a fraction of a second",
        "data position from the step": "no sample is lost or repeated after a restart, the best case for this arm",
        "30 s between SIGTERM and SIGKILL": "not a choice: a stopped worker does not hear SIGTERM, and torchrun's "
        "--shutdown-timeout does not count for restarts",
    },
    command=_restart,
    modes=("ddp", "hsdp"),
)
UNDERSTUDY = Arm(
    name="understudy",
    title="understudy run with a warm spare",
    settings={
        "--spares (scenario)": "idle processes that hold no rank until they are needed",
        "--fork-initial-ranks never": "ranks start as under torchrun; a faster start would hide what faults cost",
        "--step-timeout-min 2.0": "a rank without progress for 2 s counts as hung (the default is made for long steps)",
    },
    command=_understudy,
    modes=("ddp", "hsdp"),
)
