"""Which host of a job this is: environments as launchers and schedulers make them, and what counts before what."""

from dataclasses import replace

import pytest

from understudy.errors import SettingsError
from understudy.placement.placing import Flags, Machine, Placement, job_key, place

MANY = Flags(of_many=True)
CPU_MACHINE = Machine(name=lambda: "own-name", devices=lambda: 0, cpus=lambda: 6)
GPU_MACHINE = replace(CPU_MACHINE, devices=lambda: 8)

# What a task of `srun` gets on the third of nine nodes with 8 GPUs each, in a job that was requeued once.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[01-09]",
    "SLURM_JOB_NUM_NODES": "9",
    "SLURM_NNODES": "9",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURMD_NODENAME": "n03",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_CPUS_ON_NODE": "96",
}
# What a node of a TrainJob gets from Kubeflow Trainer 2.3 (torch plugin), in a pod of a JobSet.
TRAINER = {
    "PET_NNODES": "9",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "8",
    "PET_MASTER_ADDR": "llama-node-0-0.llama",
    "PET_MASTER_PORT": "29400",
    "JOB_COMPLETION_INDEX": "8",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "HOSTNAME": "llama-node-0-8-x7k2p",
}
INDEXED_JOB = {
    "JOB_COMPLETION_INDEX": "3",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "HOSTNAME": "train-3",
    "NODE_NAME": "gpu-node-17",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    "SKYPILOT_TASK_ID": "sky-2026-11-20-10-00-00-123456_train_1",
}
LWS = {
    "LWS_LEADER_ADDRESS": "llm-0.llm.default",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "3",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "NODE_NAME": "gpu-node-2",
}


def values(placed: Placement) -> tuple[str, int, int | None, str, str]:
    return (
        str(placed.hosts.value),
        placed.ranks_per_host.value,
        placed.place.value,
        placed.host.value,
        placed.job_key,
    )


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (MANY, {}, ("1", 1, None, "own-name", "job")),
        (MANY, SLURM, ("9", 8, 2, "n03", "4711@1")),
        (replace(MANY, nnodes="8:9"), SLURM, ("8:9", 8, 2, "n03", "4711@1")),
        (replace(MANY, nnodes="2:9"), SLURM, ("2:9", 8, None, "n03", "4711@1")),
        (MANY, TRAINER, ("9", 8, 8, "own-name", "job")),
        (replace(MANY, nnodes="8:9"), TRAINER, ("8:9", 8, None, "own-name", "job")),
        (replace(MANY, nnodes="8"), INDEXED_JOB, ("8", 1, 3, "gpu-node-17", "job")),
        (MANY, SKYPILOT, ("2", 4, 1, "own-name", "sky-2026-11-20-10-00-00-123456_train_1")),
        (MANY, LWS, ("4", 1, 3, "gpu-node-2", "job")),
    ],
)
def test_recorded_environments(
    flags: Flags, environment: dict[str, str], expected: tuple[str, int, int | None, str, str]
) -> None:
    assert values(place(flags, environment, GPU_MACHINE)) == expected


_EVERYBODY = {
    "UNDERSTUDY_NODE_RANK": "1",
    "PET_NODE_RANK": "2",
    "SLURM_NODEID": "3",
    "SKYPILOT_NODE_RANK": "4",
    "LWS_WORKER_INDEX": "5",
    "JOB_COMPLETION_INDEX": "6",
}
_NAMES = {"SLURMD_NODENAME": "slurm", "NODE_NAME": "pod's", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize("most_important", range(len(_EVERYBODY)))
def test_the_first_variable_that_says_something_counts(most_important: int) -> None:
    rest = dict(list(_EVERYBODY.items())[most_important:])
    found = place(replace(MANY, nnodes="9"), rest, CPU_MACHINE).place
    assert (found.value, found.source) == (most_important + 1, next(iter(rest)))
    flag = place(replace(MANY, nnodes="9", node_rank=0), rest, CPU_MACHINE).place
    assert (flag.value, flag.source) == (0, "--node-rank")


@pytest.mark.parametrize(
    ("flags", "environment", "value", "source"),
    [
        (Flags(nproc_per_node="3", of_many=True), {**SLURM, **TRAINER}, 3, "--nproc-per-node"),
        (MANY, {**SLURM, "UNDERSTUDY_NPROC_PER_NODE": "2", "PET_NPROC_PER_NODE": "4"}, 2, "UNDERSTUDY_NPROC_PER_NODE"),
        (MANY, {**SLURM, "PET_NPROC_PER_NODE": "4"}, 4, "PET_NPROC_PER_NODE"),
        (MANY, {**SLURM, **SKYPILOT}, 8, "SLURM_GPUS_ON_NODE"),
        (MANY, {**SKYPILOT, "SLURM_GPUS_ON_NODE": "0"}, 4, "SKYPILOT_NUM_GPUS_PER_NODE"),
        (MANY, {"SKYPILOT_NUM_GPUS_PER_NODE": "0"}, 1, "the default"),
    ],
)
def test_ranks_of_a_host(flags: Flags, environment: dict[str, str], value: int, source: str) -> None:
    found = place(flags, environment, CPU_MACHINE).ranks_per_host
    assert (found.value, found.source) == (value, source)


@pytest.mark.parametrize(("asked", "with_devices", "without"), [("auto", 8, 6), ("cpu", 6, 6), ("gpu", 8, None)])
def test_ranks_that_are_counted(asked: str, with_devices: int, without: int | None) -> None:
    flags = Flags(nproc_per_node=asked)
    assert place(flags, {}, GPU_MACHINE).ranks_per_host.value == with_devices
    if without is None:
        with pytest.raises(SettingsError, match="--nproc-per-node gpu: no device was found"):
            place(flags, {}, CPU_MACHINE)
    else:
        assert place(flags, {}, CPU_MACHINE).ranks_per_host.value == without


def test_a_machine_is_asked_only_for_what_counts() -> None:
    def never() -> int:
        raise AssertionError("it may take long")

    placed = place(Flags(nproc_per_node="2"), TRAINER, Machine(name=lambda: "here", devices=never, cpus=never))
    assert placed.ranks_per_host.value == 2


def test_a_run_on_one_host_of_an_allocation_is_no_part_of_a_job_on_all_of_them() -> None:
    placed = place(Flags(), {**SLURM, **SKYPILOT, **LWS, **INDEXED_JOB}, GPU_MACHINE)
    assert values(placed) == ("1", 1, None, "own-name", "job") and placed.origins() == ()
    torchruns = place(Flags(), {"PET_NPROC_PER_NODE": "gpu", "UNDERSTUDY_JOB": "llama"}, GPU_MACHINE)
    assert values(torchruns) == ("1", 8, None, "own-name", "llama")


def test_names_of_hosts() -> None:
    """A failure domain: the machine, not the pod on it. Other programs have a variable NODE_NAME as well."""
    assert place(MANY, _NAMES, CPU_MACHINE).host.value == "slurm"
    pods = {name: text for name, text in _NAMES.items() if name != "SLURMD_NODENAME"}
    assert place(MANY, pods, CPU_MACHINE).host.value == "pod's"
    assert place(MANY, {"NODE_NAME": "of Jenkins"}, CPU_MACHINE).host.value == "own-name"
    assert place(replace(MANY, host_name="given"), _NAMES, CPU_MACHINE).host.value == "given"


def test_attempts() -> None:
    again = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}
    assert place(MANY, again, CPU_MACHINE).job_key == "7@2"
    assert place(MANY, {**again, "UNDERSTUDY_ATTEMPT": "5"}, CPU_MACHINE).job_key == "7@5"
    assert place(replace(MANY, job="llama", attempt=0), again, CPU_MACHINE).job_key == "llama"
    assert place(MANY, {"SLURM_JOB_ID": "7"}, CPU_MACHINE).job_key == job_key("7", 0) == "7"


def test_where_values_came_from() -> None:
    told = place(replace(MANY, nnodes="8:9"), SLURM, GPU_MACHINE).origins()
    assert told == (
        "ranks per host 8 (SLURM_GPUS_ON_NODE)",
        "place 2 (SLURM_NODEID)",
        "host name n03 (SLURMD_NODENAME)",
        "job 4711 (SLURM_JOB_ID)",
        "attempt 1 (SLURM_RESTART_COUNT)",
    )


def test_sizes() -> None:
    placed = place(replace(MANY, nnodes="8:10", nproc_per_node="4"), {}, CPU_MACHINE)
    assert (placed.world_size, placed.spare_hosts) == (32, 2)


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        (Flags(nnodes="many"), {}, "--nnodes many: give the number of hosts"),
        (Flags(nnodes="0:2"), {}, "--nnodes 0:2: give"),
        (Flags(nnodes="2:"), {}, "--nnodes 2:: give"),
        (Flags(nnodes="3:2"), {}, "--nnodes 3:2: .*MAX must not be less"),
        (Flags(), {"PET_NNODES": "1,2"}, "PET_NNODES=1,2: give"),
        (MANY, {"SLURM_NODEID": "x"}, "SLURM_NODEID=x: it is no number"),
        (Flags(nproc_per_node="0"), {}, "--nproc-per-node 0: must be 1 or more"),
        (Flags(nproc_per_node="-2"), {}, "--nproc-per-node -2: must be 1 or more"),
        (Flags(nproc_per_node="xpu"), {}, "--nproc-per-node xpu: .*give the number"),
        (Flags(nproc_per_node="8x"), {}, "--nproc-per-node 8x: give a number, auto, gpu or cpu"),
        (Flags(nnodes="2:3", node_rank=3, of_many=True), {}, "--node-rank 3: there are 3 hosts"),
        (Flags(node_rank=-1), {}, "--node-rank -1: must be 0 or more"),
        (Flags(attempt=-1), {}, "--attempt -1: must be 0 or more"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(flags: Flags, environment: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        place(flags, environment, CPU_MACHINE)
