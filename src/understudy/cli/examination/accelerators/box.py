"""Part A. The box: driver, devices and settings. Finds in seconds what would spoil the rest, with what to change."""

import re
import resource
import shutil
import subprocess
from collections.abc import Sequence

from understudy.cli.examination.accelerators import nvidia_smi
from understudy.cli.examination.accelerators.bench import Workbench
from understudy.cli.examination.accelerators.contract import Disproved, Needs, NotShown, Part, Shown, Trial
from understudy.cli.examination.finding import amount

_SHARED_MEMORY = 1 << 30
_SETTINGS = re.compile(r"(TORCH_)?NCCL_|TORCH_FR_|TORCH_DIST|CUDA_|PYTORCH_")
_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")


def _present(bench: Workbench) -> Shown:
    seen = bench.seen
    if not seen.get("present"):
        raise Disproved(
            f"this process sees no device {bench.device}",
            "look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and whether torch is built for CUDA",
            **seen,
        )
    nccl = f", NCCL {seen['nccl']}" if seen.get("nccl") else ""
    return Shown(f"{bench.devices} of {bench.device}, torch {seen['torch']}{nccl}", seen)


def _objections(bench: Workbench) -> Shown:
    """Of the device and of the family of communicators, as `join()` asks them."""
    objections = bench.seen.get("objections", [])
    if objections:
        raise Disproved("; ".join(objections), "a job would refuse to start with these settings")
    return Shown("neither the device nor its family of communicators has an objection")


def _settings(bench: Workbench) -> Shown:
    """Ours are set only where the user's are not."""
    ours = bench.seen.get("variables", {})
    names = sorted(name for name in bench.environment if _SETTINGS.match(name))
    other = [name for name in names if name in ours and bench.environment[name] != ours[name]]
    if other:
        told = ", ".join(f"{name}={bench.environment[name]} (ours: {ours[name]})" for name in other)
        raise Disproved(f"set to something else than a job needs: {told}", f"unset {' '.join(other)}")
    return Shown(f"set here: {', '.join(names) or 'nothing'}", {"names": names})


def _shared_memory(_bench: Workbench) -> Shown:
    free = shutil.disk_usage("/dev/shm").free
    if free < _SHARED_MEMORY:
        raise Disproved(
            f"{amount(free)} are free in /dev/shm; NCCL and copies to peer memory need more",
            "for containers: --shm-size=8g or more",
            free_bytes=free,
        )
    return Shown(f"{amount(free)} are free in /dev/shm", {"free_bytes": free})


def _memlock(_bench: Workbench) -> Shown:
    """CUDA does not count what it pins; InfiniBand does."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Shown("a process may lock all memory", {"bytes": None})
    return Shown(f"a process may lock {amount(soft)}; InfiniBand needs more (ulimit -l unlimited)", {"bytes": soft})


# -- with a driver -----------------------------------------------------------------------------------------------------


def _gpus(bench: Workbench) -> Shown:
    """Whether they are set up so that processes do not share a fate."""
    found = nvidia_smi.gpus()
    if not found:
        raise NotShown("nvidia-smi tells of no GPU", "install it beside the driver, or mount it into the container")
    (bench.folder() / "nvidia-smi.txt").write_text(nvidia_smi.ask("-q"))
    wrong = []
    if any(gpu.mig == "Enabled" for gpu in found):
        wrong.append("MIG is on: parts of one GPU have no NCCL between them (nvidia-smi -mig 0)")
    if any(gpu.compute_mode == "Exclusive_Process" for gpu in found):
        wrong.append("the compute mode lets one process use a GPU: no spare can share it (nvidia-smi -c DEFAULT)")
    if any(gpu.persistence == "Disabled" for gpu in found):
        wrong.append("persistence mode is off: the first process to come waits for the driver (nvidia-smi -pm 1)")
    if any(gpu.uncorrected.isdecimal() and int(gpu.uncorrected) for gpu in found):
        wrong.append("a GPU has had uncorrected ECC errors since the driver was loaded: reset or replace it")
    if nvidia_smi.processes():
        wrong.append("processes are on the GPUs already: no job may run beside this")
    figures = {
        "gpus": [{name: getattr(gpu, name) for name in gpu.__slots__} for gpu in found],
        "driver": found[0].driver,
    }
    if wrong:
        raise Disproved("; ".join(wrong), "change that first: it spoils what follows", **figures)
    return Shown(f"{len(found)} x {found[0].name}, driver {found[0].driver}", figures)


def _ways(bench: Workbench) -> Shown:
    topology = nvidia_smi.ask("topo", "-m")
    (bench.folder() / "topology.txt").write_text(topology + nvidia_smi.ask("nvlink", "-s"))
    kinds = nvidia_smi.links(topology)
    if not kinds:
        raise NotShown("nvidia-smi shows no way between two GPUs", "there is one GPU, or the tool is too old")
    return Shown(f"between GPUs: {', '.join(kinds)}", {"kinds": list(kinds)})


def _xids(bench: Workbench) -> Shown:
    """Messages of the driver about faults, since the machine was started."""
    try:
        said = subprocess.run(
            ("dmesg",), check=False, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotShown(f"the kernel's messages cannot be read: {error}") from None
    if said.returncode != 0:
        raise NotShown("the kernel's messages cannot be read by this user", "run it as root to see Xids")
    found = xids_in(said.stdout)
    (bench.folder() / "xids.txt").write_text("".join(f"{where}: Xid {code}\n" for where, code in found))
    if found:
        told = ", ".join(sorted({str(code) for _, code in found}))
        raise Disproved(f"the driver has told of {len(found)} faults: Xid {told}", "see NVIDIA's list of Xid errors")
    return Shown("the driver has told of no fault")


def xids_in(messages: str) -> list[tuple[str, int]]:
    return [(match[1], int(match[2])) for match in _XID.finditer(messages)]


def _trials(_bench: Workbench) -> Sequence[Trial]:
    driver = Needs(driver=True)
    return (
        Trial(name="present", carry_out=_present),
        Trial(name="objections", carry_out=_objections),
        Trial(name="settings", carry_out=_settings),
        Trial(name="shared-memory", carry_out=_shared_memory),
        Trial(name="memlock", carry_out=_memlock),
        Trial(name="gpus", carry_out=_gpus, needs=driver),
        Trial(name="ways", carry_out=_ways, needs=driver),
        Trial(name="xids", carry_out=_xids, needs=Needs(devices=1, driver=True)),
    )


PART = Part(letter="A", title="the box", trials=_trials)
