"""What a host may say: of itself and of its own members, within the world that there is. Everything else is refused.

A host that was broken into must not reach beyond itself. Raises `WireError`, which ends the connection of the host that
said it; what an honest host may say out of date is dropped instead (`owns` is False).
"""

import hmac
from collections.abc import Mapping
from dataclasses import fields

from understudy.coordinator.hosts import HostConnections
from understudy.errors import WireError
from understudy.foundation.ids import HostId, MemberId, Rank
from understudy.protocol import events as ev
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.requests import DrainHost
from understudy.wire import host_messages as wire
from understudy.wire.roles import Certified, PartyRole

_MOST_SPARES = 1024  # on one host
_FLAGS = {
    "hosts": "nnodes",
    "host_patience": "host-timeout",
    "suspicion": "host-quarantine",
    "max_start_overs": "max-restarts",
    "stall_floor": "step-timeout-min",
    "stall_factor": "step-timeout-factor",
    "preparation_limit": "warmup-timeout",
    "forming_limit": "regroup-timeout",
    "recovery_attempts": "recovery.max-attempts",
    "attempts_per_rung": "recovery.attempts-per-strategy",
    "rungs": "recovery",
    "probation": "recovery.checked-steps",
    "peer_memory": "peer-snapshot-every",
}
"""Settings that hosts send under a name of their own: so does the previous release, and both can be in one job."""
_OF_THE_MACHINE = ("donors_per_receiver",)  # follow from a host's CPUs: no flag could make them equal


def check_greeting(attend: wire.Attend, policy: Policy) -> None:
    ranks = policy.world_size // policy.hosts
    if attend.ranks not in (0, ranks):
        raise WireError(
            f"host {attend.host} offers {attend.ranks} ranks; the job has {ranks} per host", kind="settings"
        )
    if attend.spares > _MOST_SPARES:
        raise WireError(f"host {attend.host} offers {attend.spares} spares; at most {_MOST_SPARES}", kind="settings")
    if attend.place is not None and attend.place >= policy.hosts:
        raise WireError(
            f"host {attend.host} wants place {attend.place} of {policy.hosts} (--node-rank)", kind="settings"
        )


def differing_settings(one: Policy, other: Policy) -> list[str]:
    """What all hosts of a job must have alike, and these have not."""
    names = [setting.name for setting in fields(Policy) if setting.name not in _OF_THE_MACHINE]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def check_settings(host: str, its: Policy, jobs: Policy) -> None:
    """All hosts of a job must have been started with the same flags."""
    names = differing_settings(its, jobs)
    if names:
        told = [f"{_flag(name)} {getattr(its, name)} (the job: {getattr(jobs, name)})" for name in names]
        raise WireError(
            f"host {host} was started with other settings than the job: {', '.join(told)}; give it the same flags",
            kind="settings",
        )


def _flag(setting: str) -> str:
    """The flag or key that sets it."""
    return _FLAGS.get(setting, setting.replace("_", "-"))


def check_role(attend: wire.Attend, certified: Certified | None) -> None:
    """Only an agent speaks for a host: not a client of the API that came to know the token. `certified`: what its
    certificate says; None without TLS, when it is on this host."""
    if certified is not None and (why_not := certified.why_not(PartyRole.AGENT)):
        raise WireError(f"the certificate of host {attend.host} is {why_not}", kind="role")


def check_certificate(attend: wire.Attend, certified: Certified | None) -> None:
    """A host has a certificate of its own, so that one which was broken into cannot be another one."""
    if certified is not None and attend.host not in certified.names:
        whose = ", ".join(sorted(certified.names)) or "no name"
        raise WireError(
            f"host {attend.host} has a certificate for {whose}: give it one whose common or alternative name is "
            f"{attend.host}, or the name of its certificate with --host-name",
            kind="certificate",
        )


def check_event(lines: HostConnections, host: HostId, event: ev.Event) -> None:
    if isinstance(event, DrainHost) and event.host != host:
        raise WireError(f"host {host} wants host {event.host} to be drained", kind="not its own")
    if isinstance(event, ev.ActivityObserved) and event.host != host:
        raise WireError(f"host {host} tells what host {event.host} sees", kind="not its own")
    seen = event.sightings if isinstance(event, ev.ActivityObserved) else ()
    named = [sighting.member for sighting in seen] if seen else [getattr(event, "member", None)]
    for member in named:
        if member is not None:
            check_home(lines, host, member)


def check_home(lines: HostConnections, host: HostId, member: MemberId) -> None:
    if lines.home_of(member) not in (None, host):
        raise WireError(f"host {host} speaks for {member}, which lives elsewhere", kind="not its own")


def owns(
    lines: HostConnections, machine: JobMachine, former: Mapping[MemberId, Rank], host: HostId, left: wire.Bequeathed
) -> bool:
    """May this host say what a rank leaves? For the rank of a member that lives there; for no other one. `former`:
    which member held which rank at a takeover; it may have died while no coordinator led."""
    member = MemberId(left.member)
    if not left.again:
        check_home(lines, host, member)
    known = machine.roster.members.get(member)
    rank = former.get(member) if known is None else known.rank
    if rank is None or lines.home_of(member) != host:
        return False
    return left.rank in (None, rank) and left.world <= machine.generation


def seal(key: bytes, left: wire.Bequeathed) -> bytes:
    """Coordinators alone know the key: a host that keeps something for another one cannot change it."""
    return hmac.digest(key, f"bequest {left.rank} {left.world} ".encode() + left.content, "sha256")


def is_sealed(key: bytes, left: wire.Bequeathed) -> bool:
    return bool(key and left.seal) and hmac.compare_digest(seal(key, left), left.seal)
