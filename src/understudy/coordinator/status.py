"""What a coordinator says about itself and its job, as plain values: for `/health`, `/status` and monitors."""

from collections.abc import Mapping

from understudy.coordinator.coordinator import Coordinator
from understudy.coordinator.leader import Leader
from understudy.coordinator.service import Service
from understudy.foundation.ids import HostId
from understudy.protocol.hosts import Host
from understudy.protocol.roster import Roster

_OF_JOB = (
    "generation",
    "stage",
    "world_size",
    "committed_step",
    "committed_step_unchanged_seconds",
    "absent_ranks",
    "store",
)


def health(service: Service) -> dict[str, object]:
    """It answers, so it is well; leadership is no matter of health."""
    return {"healthy": True, "leading": _leads(service.leader)}


def is_ready(service: Service) -> bool:
    """It leads, or it stands by and knows the leader."""
    return service.leader.leading() if service.leader is not None else bool(service.leads)


def status(service: Service, http_refused: Mapping[str, int]) -> dict[str, object]:
    """`refused`: by kind, since this process began."""
    leader = service.leader
    coordinator = None if leader is None else leader.coordinator
    return {
        "job": service.job,
        "leading": _leads(leader),
        "leader": service.leads,
        "term": None if leader is None else leader.term,
        **_of_job(coordinator),
        "connected": [] if leader is None else sorted(leader.lines.lines),
        "certificate_ends": {} if leader is None else leader.lines.certificate_ends(),
        "refused": {"grpc": dict(service.refused), "http": dict(http_refused)},
        "dropped": {} if leader is None else dict(leader.lines.dropped),
        "outcome": None if leader is None or leader.outcome is None else leader.outcome.outcome.value,
    }


def _leads(leader: Leader | None) -> bool:
    return leader is not None and leader.leading()


def _of_job(coordinator: Coordinator | None) -> dict[str, object]:
    if coordinator is None:
        return dict.fromkeys(_OF_JOB) | {"hosts": {}}
    machine, told = coordinator.machine, coordinator.steps.by_host
    committed = coordinator.steps.committed(machine)
    ranks: dict[HostId, list[int]] = {}
    for rank, holder in sorted(machine.roster.holders.items()):
        ranks.setdefault(machine.roster.members[holder].host, []).append(rank)
    return {
        "generation": machine.generation,
        "stage": machine.stage.name.lower(),
        "world_size": machine.policy.world_size,
        "committed_step": committed.step,
        "committed_step_unchanged_seconds": committed.unchanged_for,
        "absent_ranks": sorted(machine.round.state.absent),
        "store": machine.round.state.store,
        "hosts": {
            host.id: {
                "state": _state(host),
                "ranks": ranks.get(host.id, []),
                "steps": [told[host.id].smallest, told[host.id].largest] if host.id in told else None,
                "spares": machine.roster.spares_on.get(host.id, 0),
                **_devices(host, machine.roster),
            }
            for host in machine.hosts.by_id.values()
        },
    }


def _devices(host: Host, roster: Roster) -> dict[str, object]:
    """Nothing, where the host has told of none. `devices`: each member's."""
    if not host.devices:
        return {}
    return {"devices": dict(roster.devices.get(host.id, {})), "lost_devices": sorted(host.lost_devices)}


def _state(host: Host) -> str:
    return "lost" if not host.present else "silent" if host.silent_since is not None else "present"
