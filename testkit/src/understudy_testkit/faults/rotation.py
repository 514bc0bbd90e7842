"""Certificates of a running job change: the same authority signs new ones, another one takes over, and some end.

The job is a real coordinator process and light hosts, whose ways to it are cut after every change: what counts is
whether a line can be made again with the certificates of that moment.
"""

import asyncio
import contextlib
import os
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from understudy.protocol.policy import Policy
from understudy.wire import message_auth, transport
from understudy.wire.certificates import AUTHORITY, CERTIFICATE, KEY, Certificates
from understudy.wire.issuing import Authority, make_authority, make_set
from understudy.wire.renewal import RenewalWatch
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.coordinators import CoordinatorProcess
from understudy_testkit.faults.cuttable import CuttableWay, cuttable_way
from understudy_testkit.faults.light_hosts import LightHost, Meeting
from understudy_testkit.faults.waiting import until

_BOSS, _LATE, _MONITOR, _HOSTS = "boss", "late", "monitor", ("first", "second")
_READ_EVERY = 0.2  # seconds; light hosts look more often than a real agent
_LOOK_EVERY = 0.25  # seconds between two looks at what the coordinator shows
_USED_TIMEOUT = 60.0
_A_DAY = 86400.0
_A_MONTH = 30 * _A_DAY
_CONNECTED = "connected to the coordinator"


@dataclass(slots=True)
class IssuedSet:
    """The folders of all parties. New files take the place of old ones whole, one by one, as an operator does it. A
    process that is in neither `coordinators` nor `api_clients` is an agent."""

    folder: Path
    parties: tuple[str, ...]
    coordinators: tuple[str, ...] = ()
    api_clients: tuple[str, ...] = ()
    _count: int = field(default=0, init=False)

    def issue(
        self, signing: Authority, trusted: Sequence[Authority], parties: Sequence[str] = (), seconds: float = _A_MONTH
    ) -> None:
        """`parties`: all, if none are named. `seconds`: for how long they are valid from now on."""
        self._count += 1
        names = tuple(parties) or self.parties
        made = self.folder.with_name(f"{self.folder.name}.{self._count}")
        agents = [name for name in names if name not in (*self.coordinators, *self.api_clients)]
        make_set(
            made,
            names,
            coordinators=self.coordinators,
            api_clients=self.api_clients,
            agents=agents,
            authority=signing,
            days=seconds / _A_DAY,
        )
        for name in names:
            place = self.folder / name
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            (made / name / AUTHORITY).write_bytes(b"".join(authority.pem for authority in trusted))
            for file in (AUTHORITY, CERTIFICATE, KEY):
                os.replace(made / name / file, place / file)


@dataclass(slots=True)
class RotatedJob:
    """`hosts`: with a rank each. `late`: with a spare, and a certificate that ends."""

    coordinator: CoordinatorProcess
    way: CuttableWay
    issued: IssuedSet
    certificates: dict[str, Certificates]
    hosts: list[LightHost]
    late: LightHost

    def connected(self) -> bool:
        return all(host.client.connected and len(host.members) == 1 for host in self.hosts)

    async def make_lines_again(self, what: str) -> None:
        """Every host with a rank has to come back with the certificates that it has now."""
        before = [_times_connected(host) for host in self.hosts]
        self.way.cut()

        def came_back() -> bool:
            now = [_times_connected(host) for host in self.hosts]
            return self.connected() and all(more > few for few, more in zip(before, now, strict=True))

        await until(came_back, f"the hosts to come back after {what}")

    async def wait_until_used(self, what: str) -> float:
        """The coordinator shows the newest certificate, and every host has read its own. Returns the seconds."""
        began = time.monotonic()
        while not (all(map(self.has_read, self.certificates)) and await asyncio.to_thread(self._served)):
            if time.monotonic() - began > _USED_TIMEOUT:
                raise NotProven(f"{what}, and the new files were not used within {_USED_TIMEOUT:g} s")
            await asyncio.sleep(_LOOK_EVERY)
        return time.monotonic() - began

    def has_read(self, party: str) -> bool:
        return self.certificates[party].certificate == (self.issued.folder / party / CERTIFICATE).read_bytes()

    def _served(self) -> bool:
        newest = (self.issued.folder / _BOSS / CERTIFICATE).read_text()
        try:
            shown = ssl.get_server_certificate(("127.0.0.1", self.coordinator.http_port), timeout=5.0)
        except OSError:
            return False
        return ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(newest)


def _times_connected(host: LightHost) -> int:
    return sum(said.startswith(_CONNECTED) for said in host.said)


def _policy() -> Policy:
    """A host whose line is cut has time to come back, also on a busy machine."""
    return Policy(world_size=len(_HOSTS), hosts=len(_HOSTS), host_patience=30.0)


@contextlib.asynccontextmanager
async def _rotated_job(folder: Path, issued: IssuedSet) -> AsyncIterator[RotatedJob]:
    token = secrets.token_hex(16)
    with coordinators.running(folder, "rotated", token, "--certs", str(issued.folder / _BOSS)) as coordinator:
        address = await asyncio.to_thread(lambda: coordinator.address)
        async with cuttable_way(address) as way, contextlib.AsyncExitStack() as stack:
            read = {name: Certificates.read(issued.folder / name) for name in (*_HOSTS, _LATE)}
            meeting = Meeting(address=way.address, token=token, world=len(_HOSTS), policy=_policy())

            def make(name: str, ranks: int, spares: int) -> LightHost:
                host = LightHost(name, ranks, spares, replace(meeting, certificates=read[name]), {})
                stack.enter_context(RenewalWatch(read[name], host.said.append, look_every=_READ_EVERY).looking())
                stack.push_async_callback(host.client.close, "the claim ends")
                host.client.start()
                return host

            hosts = [make(name, 1, 0) for name in _HOSTS]
            late = make(_LATE, 0, 1)
            yield RotatedJob(coordinator, way, issued, read, hosts, late)


async def rotate(folder: Path) -> str:
    """Raises `NotProven` if anything is lost, or if a party comes in that may not any more. Returns what was done."""
    former, coming = make_authority(), make_authority()
    issued = IssuedSet(folder / "set", (_BOSS, *_HOSTS, _LATE, _MONITOR), (_BOSS,), (_MONITOR,))
    issued.issue(former, [former])
    old = IssuedSet(folder / "old", _HOSTS)
    old.issue(former, [former, coming])
    async with _rotated_job(folder, issued) as job:
        await until(lambda: job.connected() and job.late.client.connected, "all hosts to be connected")
        members = [dict(host.members) for host in job.hosts]
        await _end_one(job, former)
        took = [
            await _renew(job, former, [former, coming], "the same authority has signed new ones"),
            await _renew(job, coming, [former, coming], "another authority has signed new ones"),
            await _renew(job, coming, [coming], "the former authority is trusted no more"),
        ]
        await _refused(job, Certificates.read(old.folder / _HOSTS[0]))
        if members != [dict(host.members) for host in job.hosts] or not job.connected():
            raise NotProven("a host has lost its member or its line while certificates were renewed")
        if "Traceback" in (said := job.coordinator.output.read_text()):
            raise NotProven(f"something was not expected:\n{said[-3000:]}")
    return f"certificates renewed {len(took)} times in a running job (used after {max(took):.0f} s at most)"


async def _renew(job: RotatedJob, signing: Authority, trusted: Sequence[Authority], what: str) -> float:
    """For all parties."""
    job.issued.issue(signing, trusted)
    seconds = await job.wait_until_used(what)
    await job.make_lines_again(what)
    print(f"  {what}: used after {seconds:.1f} s, and every line was made again", flush=True)
    return seconds


async def _end_one(job: RotatedJob, authority: Authority) -> None:
    """A host whose certificate has ended keeps its line, cannot make another one, and says why; with a new certificate
    it can. The others do not notice."""
    job.issued.issue(authority, [authority], [_LATE], seconds=-60.0)
    await until(lambda: job.has_read(_LATE), "a host to read its certificate")
    if not job.late.client.connected:
        raise NotProven("a host has lost its line because its certificate has ended")
    await job.make_lines_again("the end of another host's certificate")
    await until(lambda: any("the certificate has ended" in said for said in job.late.said), "a host to say so")
    if job.late.client.connected:
        raise NotProven("a host came back with a certificate that has ended")
    job.issued.issue(authority, [authority], [_LATE])
    await until(lambda: job.late.client.connected, "a host to come back with a new certificate")
    print("  a certificate ended: its host was refused and said so, and came back with a new one", flush=True)


async def _refused(job: RotatedJob, former: Certificates) -> None:
    """Of an authority that is trusted no more."""
    channel = transport.open_channel(job.coordinator.address, former)
    try:
        await message_auth.call(channel.stream_stream(transport.PATH), secrets.token_hex(16), 10.0)
    except transport.grpc_module().aio.AioRpcError:
        return
    finally:
        await channel.close()
    raise NotProven("a certificate of the former authority is still trusted")
