"""The arms of torchft: as its README says, tuned for quick recovery, and tuned with warm spares."""

import importlib.util
import sys

from understudy_testkit.benchmark.arms.arm import Arm, Command, RunPaths
from understudy_testkit.benchmark.scenario import Scenario

_LAUNCHER = "understudy_testkit.benchmark.arms.torchft_launcher"
_TUNED_LIGHTHOUSE = ("--quorum-tick-ms", "20", "--join-timeout-ms", "3000", "--heartbeat-timeout-ms", "1000")
_TUNED_WORKER = ("--group-timeout", "2", "--heartbeat-interval", "0.05")
_REVIVE = ("--stopped-timeout", "2")


def _launch(
    scenario: Scenario, place: RunPaths, ranks: int, flags: tuple[str, ...], worker: tuple[str, ...]
) -> Command:
    """With ddp a group is one rank; with hsdp it is one replica, of `shards` ranks."""
    shards = 1 if scenario.work.mode == "ddp" else scenario.work.ranks // 2
    launcher = (sys.executable, "-m", _LAUNCHER, *place.worker_arguments)
    launcher = (*launcher, "--groups", str(ranks // shards), "--shards", str(shards))
    return Command(arguments=(*launcher, *flags, "--", *worker))


def _as_in_readme(scenario: Scenario, place: RunPaths) -> Command:
    return _launch(scenario, place, scenario.work.ranks, (), ())


def _tuned(scenario: Scenario, place: RunPaths) -> Command:
    return _launch(scenario, place, scenario.work.ranks, (*_TUNED_LIGHTHOUSE, *_REVIVE), _TUNED_WORKER)


def _spares(scenario: Scenario, place: RunPaths) -> Command:
    ranks = scenario.work.ranks
    flags = (*_TUNED_LIGHTHOUSE, *_REVIVE, "--min-replicas", str(ranks))
    return _launch(scenario, place, ranks + scenario.spares, flags, (*_TUNED_WORKER, "--fixed-with-spares"))


def _missing() -> str | None:
    return None if importlib.util.find_spec("torchft") else "torchft is not installed (pip install torchft-nightly)"


_SETTINGS = {
    "restart of a dead group within 0.05 s": "torchft leaves restarts to the user; a quick supervisor is the best case",
    "lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000": "the command in torchft's README",
    "ProcessGroupGloo 5 s, PGTransport 10 s, Manager 30 s": "timeouts of torchft's train_ddp.py",
    "a stopped group is killed after 5 s": "it would never come back otherwise. 5 s without a heartbeat is when the "
    "lighthouse counts a group as dead by default",
    "hsdp: FSDP2 in a group, manager.allreduce in its all-reduce hook": "as in torchft's fsdp_test.py",
    "hsdp: use_async_quorum=False": "FSDP2 gathers parameters during the forward pass; state that is read beside it "
    "(the default) reached a healing group without its storage, and both groups were lost",
    "init_sync=False": "as its documentation asks for when all groups begin with the same seed",
    "data position from manager.current_step()": "no batch is repeated after a restart; its sampler would begin again",
    "all groups wait for each other at the start": "the first quorum is complete, no step is made by fewer groups",
    "weights saved at the end": "a group that was away at the last step takes them; it would train on alone otherwise",
}
_README_ONLY = ("lighthouse", "ProcessGroupGloo", "a stopped group")
_TUNED_SETTINGS = {
    **{reason: why for reason, why in _SETTINGS.items() if not reason.startswith(_README_ONLY)},
    "lighthouse --heartbeat_timeout_ms 1000 (default 5000)": "a dead group is out of the quorum after 1 s, not 5 s",
    "lighthouse --join_timeout_ms 3000 (README 10000)": "for groups that are alive but late. Below the 2 s of "
    "ProcessGroupGloo a group that still waits in a broken collective would be left out, and had to heal",
    "lighthouse --quorum_tick_ms 20 (default 100)": "a quorum that has become possible is formed within 20 ms",
    "Manager heartbeat_interval 0.05 s (default 0.1)": "20 heartbeats within the shorter heartbeat timeout",
    "ProcessGroupGloo 2 s (train_ddp.py 5)": "a group that hangs in a step is noticed after 2 s; steps are far shorter",
    "PGTransport 10 s, Manager 30 s": "timeouts of torchft's train_ddp.py; they bound nothing that a fault waits for",
    "a stopped group is killed after 2 s": "its collectives have timed out by then",
}

TORCHFT = Arm(
    name="torchft",
    title="torchft as in its README and train_ddp.py, one replica group per rank",
    settings=_SETTINGS,
    command=_as_in_readme,
    missing=_missing,
    modes=("ddp", "hsdp"),
    packages=("torch", "torchft-nightly"),
)
TORCHFT_TUNED = Arm(
    name="torchft-tuned",
    title="torchft with short timeouts",
    settings={**_TUNED_SETTINGS, "lighthouse --min_replicas 1": "the command in torchft's README"},
    command=_tuned,
    missing=_missing,
    modes=("ddp", "hsdp"),
    packages=("torch", "torchft-nightly"),
)
TORCHFT_SPARES = Arm(
    name="torchft-spares",
    title="torchft with short timeouts and warm spares",
    settings={
        **_TUNED_SETTINGS,
        "WorldSizeMode.FIXED_WITH_SPARES, min_replica_size = ranks": "every step has the gradients of all ranks",
        "more groups (scenario)": "the warm spares: they compute every step, with gradients that count as zero",
        "lighthouse --min_replicas = ranks": "fewer groups could not commit a step, so they need no quorum",
        "data by manager.participating_rank()": "a process takes the samples of its rank; costs a wait for the quorum",
    },
    command=_spares,
    missing=_missing,
    packages=("torch", "torchft-nightly"),
)
