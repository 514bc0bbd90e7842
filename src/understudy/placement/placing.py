"""Flags and environment, to the place of this host in its job; and where each value came from.

Flags count before variables, and variables in the order of `variables.SOURCES`. A host that is told no place has one by
the order of arrival: the first hosts that come hold the ranks, and every further one is a spare host.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy.errors import SettingsError
from understudy.placement.variables import told

JOB = "job"  # the name of a job that is given none
_DEFAULT = "the default"
_OWN_NAME = "its own name"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was given on the command line or in a file of flags. None: was not given. `of_many`: this host is one of
    many, whatever their number."""

    nnodes: str | None = None
    nproc_per_node: str | None = None
    node_rank: int | None = None
    host_name: str | None = None
    job: str | None = None
    attempt: int | None = None
    of_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What only this host knows. Asked only if it counts."""

    name: Callable[[], str]
    devices: Callable[[], int]
    cpus: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Sourced(Generic[_T]):
    """A value, and which flag or variable it is from."""

    value: _T
    source: str

    @property
    def from_environment(self) -> bool:
        return not self.source.startswith("--") and self.source not in (_DEFAULT, _OWN_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCount:
    """The world is founded when `least` hosts with ranks are there. Those that come later, up to `most`, are spare
    hosts."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`place`: among the hosts with ranks; None: by the order of arrival."""

    hosts: Sourced[HostCount]
    ranks_per_host: Sourced[int]
    place: Sourced[int | None]
    host: Sourced[str]
    job: Sourced[str]
    attempt: Sourced[int]

    @property
    def world_size(self) -> int:
        return self.hosts.value.least * self.ranks_per_host.value

    @property
    def spare_hosts(self) -> int:
        return self.hosts.value.most - self.hosts.value.least

    @property
    def job_key(self) -> str:
        """Under which the hosts and coordinators of this attempt find each other, and no other attempt's."""
        return job_key(self.job.value, self.attempt.value)

    def origins(self) -> tuple[str, ...]:
        """What was taken from the environment, for people."""
        named = (
            ("hosts", self.hosts),
            ("ranks per host", self.ranks_per_host),
            ("place", self.place),
            ("host name", self.host),
            ("job", self.job),
            ("attempt", self.attempt),
        )
        return tuple(f"{what} {found.value} ({found.source})" for what, found in named if found.from_environment)


def job_key(job: str, attempt: int) -> str:
    """A scheduler starts a job again under the same name; what the attempt before left in a store is not its own."""
    return f"{job}@{attempt}" if attempt else job


def place(flags: Flags, environment: Mapping[str, str], machine: Machine) -> Placement:
    """Raises `SettingsError`, which names the flag or variable that cannot be used."""
    of_many = flags.of_many
    hosts = _hosts(_found(flags.nnodes, "--nnodes", environment, "nnodes", of_many, "1:1"))
    ranks = _ranks(_found_ranks(flags, environment), machine)
    name = _found(flags.host_name, "--host-name", environment, "host_name", of_many, "")
    return Placement(
        hosts=hosts,
        ranks_per_host=ranks,
        place=_place(flags, environment, hosts.value),
        host=name if name.value else Sourced(machine.name(), _OWN_NAME),
        job=job_of(flags, environment),
        attempt=attempt_of(flags, environment),
    )


def job_of(flags: Flags, environment: Mapping[str, str]) -> Sourced[str]:
    return _found(flags.job, "--job", environment, "job", flags.of_many, JOB)


def attempt_of(flags: Flags, environment: Mapping[str, str]) -> Sourced[int]:
    given = None if flags.attempt is None else str(flags.attempt)
    return _number(_found(given, "--attempt", environment, "attempt", flags.of_many, "0"), 0)


def _found(
    given: str | None, flag: str, environment: Mapping[str, str], matter: str, of_many: bool, default: str
) -> Sourced[str]:
    if given is not None:
        return Sourced(given, flag)
    name, text = next(told(environment, matter, of_many=of_many), (_DEFAULT, default))
    return Sourced(text, name)


def _found_ranks(flags: Flags, environment: Mapping[str, str]) -> Sourced[str]:
    """A scheduler that gave no devices says nothing of ranks."""
    if flags.nproc_per_node is not None:
        return Sourced(flags.nproc_per_node, "--nproc-per-node")
    found = (
        Sourced(text, name)
        for name, text in told(environment, "nproc_per_node", of_many=flags.of_many)
        if text != "0" or name.startswith(("UNDERSTUDY_", "PET_"))
    )
    return next(found, Sourced("1", _DEFAULT))


def _hosts(told: Sourced[str]) -> Sourced[HostCount]:
    least, colon, most = told.value.partition(":")
    if not _is_number(least) or (colon and not _is_number(most)) or int(least) < 1:
        raise _unfit(
            told, "give the number of hosts, as in 8, or MIN:MAX, as in 8:9 for 8 hosts with ranks and a spare"
        )
    count = HostCount(least=int(least), most=int(most) if colon else int(least))
    if count.most < count.least:
        raise _unfit(told, "MIN:MAX are the hosts with ranks, and these with the spare hosts: MAX must not be less")
    return Sourced(count, told.source)


def _ranks(told: Sourced[str], machine: Machine) -> Sourced[int]:
    match told.value:
        case "auto":
            return Sourced(machine.devices() or machine.cpus(), told.source)
        case "cpu":
            return Sourced(machine.cpus(), told.source)
        case "gpu":
            if not (count := machine.devices()):
                raise _unfit(told, "no device was found on this host, by its driver's files; give the number of ranks")
            return Sourced(count, told.source)
        case "xpu":
            raise _unfit(told, "such devices are not counted; give the number of ranks")
    if not _is_number(told.value) and not told.value.lstrip("-").isdecimal():
        raise _unfit(told, "give a number, auto, gpu or cpu")
    return _number(told, 1)


def _place(flags: Flags, environment: Mapping[str, str], hosts: HostCount) -> Sourced[int | None]:
    """Among hosts of which some are spare a place is a wish, and one beyond those with ranks none at all: which hosts
    hold ranks is decided by the order of arrival. That a scheduler counts further than the job is no mistake."""
    given = None if flags.node_rank is None else str(flags.node_rank)
    found = _found(given, "--node-rank", environment, "node_rank", flags.of_many, "")
    if not found.value:
        return Sourced(None, _DEFAULT)
    number = _number(found, 0)
    if flags.of_many and given is not None and number.value >= hosts.most:
        raise _unfit(found, f"there are {hosts.most} hosts (--nnodes), and the first one is 0")
    return Sourced(number.value if number.value < hosts.least else None, found.source)


def _number(told: Sourced[str], least: int) -> Sourced[int]:
    text = told.value
    if not _is_number(text.removeprefix("-")):
        raise _unfit(told, "it is no number")
    if int(text) < least:
        raise _unfit(told, f"must be {least} or more")
    return Sourced(int(text), told.source)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _unfit(told: Sourced[str], why: str) -> SettingsError:
    joined = f"{told.source} {told.value}" if told.source.startswith("--") else f"{told.source}={told.value}"
    return SettingsError(f"{joined}: {why}")
