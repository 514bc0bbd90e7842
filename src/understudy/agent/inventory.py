"""What monitors call this host: its name, addresses, pod and devices; and how many ranks it can hold. Never tried on a
host with devices (docs/api.md).

Everything comes from files of the kernel and of the driver and from the environment that the caller passes; no process
is asked over a network, and no library of a vendor is needed. What is not there or cannot be understood is left out: a
host without devices is the normal case. `read` is the only part that touches files.
"""

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.detection.device_health import device_of
from understudy.devices import views
from understudy.wire.inventory import LONGEST, MOST_ADDRESSES, MOST_DEVICES, Device, HostInventory

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LARGEST = 1 << 20  # characters of one file


def read(environment: Mapping[str, str], *, proc: Path = Path("/proc")) -> HostInventory:
    """To be called once, before anything depends on this process: a driver in trouble may keep its readers waiting.
    `environment`: as the processes of the job get it."""
    reports = [_content(file) for file in _matching(proc / "driver" / "nvidia" / "gpus", "*/information")]
    addresses = local_addresses(_content(proc / "net" / "fib_trie"), _content(proc / "net" / "if_inet6"))
    return HostInventory(
        host_name=_sayable(_content(proc / "sys" / "kernel" / "hostname")),
        addresses=addresses[:MOST_ADDRESSES],
        pod=pod_name(environment),
        devices=() if views.hidden(environment) else devices_in_slots(reports, environment.get(views.VARIABLE)),
    )


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _content(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_LARGEST)
    except OSError:
        return ""


def _sayable(text: str) -> str:
    """In a form that every coordinator takes, or nothing. A greeting must not be refused for the sake of a name."""
    clean = text.strip()
    return clean if clean.isprintable() and len(clean) <= LONGEST else ""


def pod_name(environment: Mapping[str, str]) -> str:
    """Elsewhere than in Kubernetes both variables mean something else."""
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return ""
    return _sayable(environment.get("POD_NAME") or environment.get("HOSTNAME", ""))


# -- devices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """`index`: its number in CUDA_VISIBLE_DEVICES; None: not known."""

    index: int | None
    uuid: str
    pci_bus_id: str


def devices_in_slots(reports: Sequence[str], visible: str | None) -> tuple[Device, ...]:
    """`reports`: the driver's page about each device. `visible`: CUDA_VISIBLE_DEVICES. A device that no local rank can
    see is left out."""
    listed = _listed(reports)
    found: list[Device] = []
    for slot in range(MOST_DEVICES):
        device = device_of(slot, listed, visible)
        if device is not None and (device.uuid or device.pci_bus_id):
            found.append(Device(slot=slot, uuid=device.uuid, pci_bus_id=device.pci_bus_id))
    return tuple(found)


def _listed(reports: Sequence[str]) -> list[_Listed]:
    """In the order of their minor numbers. Where one of these cannot be read or is there twice, only UUIDs say which is
    which: the numbers of all others might be wrong, too."""
    pages = [page for page in map(_fields, reports) if page.get("GPU Excluded", "No") == "No"]
    minors = [int(text) for text in (page.get("Device Minor", "") for page in pages) if _is_number(text)]
    numbered = len(set(minors)) == len(pages)
    if numbered:
        pages = [page for _, page in sorted(zip(minors, pages, strict=True), key=lambda pair: pair[0])]
    return [
        _Listed(index if numbered else None, _uuid(page), _sayable(page.get("Bus Location", "")))
        for index, page in enumerate(pages)
    ]


def _fields(report: str) -> dict[str, str]:
    lines = (line.partition(":") for line in report.splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon}


def _uuid(page: Mapping[str, str]) -> str:
    """The driver shows question marks for a device that was not used yet."""
    uuid = _sayable(page.get("GPU UUID", ""))
    return "" if "?" in uuid else uuid


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


# -- CPUs -------------------------------------------------------------------------------------------------------------


def cpus(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """That this process may use: those that it may run on, and no more than its control groups let it have."""
    quotas = cpu_quotas(_content(proc / "self" / "cgroup"), lambda name: _content(cgroups / name))
    return max(1, min([len(os.sched_getaffinity(0)), *(int(quota) for quota in quotas)]))


def cpu_quotas(own_groups: str, content: Callable[[str], str]) -> list[float]:
    """As numbers of CPUs. `own_groups`: the kernel's page about the groups of a process. `content`: of a file below the
    folder of control groups. A group is held to the quotas of all those above it, too; inside a container only the
    folder itself may be there."""
    found = []
    for line in own_groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part]
        groups = ["/".join(parts[:length]) for length in range(len(parts) + 1)]
        if number == "0":  # version 2
            found += [content(f"{group}/cpu.max".lstrip("/")).split() for group in groups]
        elif "cpu" in controllers.split(","):
            names = [f"cpu/{group}/cpu.cfs".replace("//", "/") for group in groups]
            found += [[content(f"{name}_quota_us").strip(), content(f"{name}_period_us").strip()] for name in names]
    return [int(told[0]) / int(told[1]) for told in found if len(told) == 2 and all(map(_is_positive, told))]


def _is_positive(text: str) -> bool:
    """Not `max`, and not -1: these are no limits."""
    return text.isascii() and text.isdecimal() and len(text) < 15 and int(text) > 0


# -- addresses --------------------------------------------------------------------------------------------------------


def local_addresses(fib_trie: str, if_inet6: str) -> tuple[str, ...]:
    """From two tables of the kernel, each once. Those that every host has (loopback, link-local) name none."""
    found: list[_Address] = [*_of_version_4(fib_trie), *_of_version_6(if_inet6)]
    return tuple(dict.fromkeys(str(own) for own in found if not (own.is_loopback or own.is_link_local)))


def _of_version_4(fib_trie: str) -> Iterator[ipaddress.IPv4Address]:
    """A leaf (`|-- 10.0.0.5`) is followed by what holds for it; `/32 host LOCAL` says that it is ours."""
    leaf = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[-1]
        elif words == ["/32", "host", "LOCAL"]:
            try:
                yield ipaddress.IPv4Address(leaf)
            except ValueError:
                continue


def _of_version_6(if_inet6: str) -> Iterator[ipaddress.IPv6Address]:
    """One line each, which begins with 32 digits."""
    for line in if_inet6.splitlines():
        digits = line.partition(" ")[0]
        try:
            yield ipaddress.IPv6Address(bytes.fromhex(digits))
        except ValueError:
            continue
