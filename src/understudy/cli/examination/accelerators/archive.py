"""Part G. What is sent back: one archive with the results, ledgers, what processes said, and what nvidia-smi says.

JSON and text only, and of the environment only what is named here. What NCCL says of itself names this host, its
interfaces and paths; that stays, and the page about the doctor says so.
"""

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from understudy.cli.examination import versions
from understudy.cli.examination.accelerators.bench import Workbench
from understudy.cli.examination.accelerators.contract import Result
from understudy.cli.examination.finding import Finding, amount
from understudy.errors import SettingsError
from understudy.files.private import FILE_MODE

FORMAT = 1
_TOP = "understudy-acceptance"
_KINDS = (".json", ".jsonl", ".txt")
_LARGEST = 4 << 20  # bytes of one file; of a larger one the beginning and the end
NAMES = (
    *(
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MODULE_LOADING",
    ),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"),
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE"),
    *("NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET"),
    *("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_CUMEM_ENABLE"),
    *("NCCL_SOCKET_RETRY_CNT", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_LAUNCH_MODE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_AVOID_RECORD_STREAMS"),
    *("TORCH_NCCL2_RECONFIGURE_SHRINK_GROW", "TORCH_NCCL_USE_COMM_NONBLOCKING", "TORCH_NCCL_ENABLE_MONITORING"),
    *("TORCH_FR_BUFFER_SIZE", "TORCH_DIST_USE_NCCL2", "TORCH_DISTRIBUTED_DEBUG", "TORCH_DISTRIBUTED_USE_TORCHCOMMS"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK", "OMP_NUM_THREADS"),
    *("GLOO_SOCKET_IFNAME",),
)
"""Variables whose values are told. Of all others not even the name is."""


def require_place(path: Path) -> None:
    """Asked before anything is tried, which takes long."""
    if path.exists():
        raise SettingsError(f"--archive {path}: it is there already; name another file")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise SettingsError(f"--archive {path}: no file can be written there")


def report(bench: Workbench, results: Sequence[Result], began: float) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "device": bench.device,
        "family": bench.family,
        "emulated": bench.emulated,
        "devices": bench.devices,
        "quick": bench.quick,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(time.time() - began, 1),
        "versions": versions.versions_here(),
        "system": {"kernel": platform.release(), "machine": platform.machine(), "cores": os.cpu_count()},
        "environment": named(bench.environment),
        "seen": bench.seen,
        "results": [{**asdict(result), "verdict": result.verdict.value} for result in results],
    }


def named(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in NAMES if name in environment}


def write(path: Path, bench: Workbench, results: Sequence[Result], began: float) -> Finding:
    content = json.dumps(report(bench, results, began), indent=1).encode()
    count = 1
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as packed:
        _add(packed, "results.json", content)
        for name, text in _files(bench.top):
            _add(packed, name, text)
            count += 1
    return Finding(f"G archive: {count} files, {amount(path.stat().st_size)}, in {path}: send this one back", good=True)


def _files(top: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(top.rglob("*")):
        if path.suffix in _KINDS and path.is_file() and not path.is_symlink():
            yield str(path.relative_to(top)), shortened(path.read_bytes())


def shortened(content: bytes) -> bytes:
    if len(content) <= _LARGEST:
        return content
    half = _LARGEST // 2
    left_out = b"\n[... %d bytes are left out ...]\n" % (len(content) - 2 * half)
    return content[:half] + left_out + content[-half:]


def _add(packed: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"{_TOP}/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), FILE_MODE
    packed.addfile(entry, io.BytesIO(content))
