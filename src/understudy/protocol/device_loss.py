"""What follows for a device when a process on it was lost: it may be used again, once more, or never.

    its fault is known to leave the device well   ─▶ used again
    nothing is known of the fault                 ─▶ used once more; excluded at the second time
    its fault is known to be the device's own     ─▶ excluded on its host, until an operator uses the host again

On an excluded device there is no rank and no spare: shadows that are there are ended, and others are started elsewhere.
Knows nothing of kinds of devices: what a fault means was said by the one that saw it (`causes.DeviceFault`).
"""

from understudy.protocol.causes import Afterwards, Cause
from understudy.protocol.commands import Command, DecisionKind, KillMember
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.reasons import Code, because
from understudy.protocol.roster import Member, Roster
from understudy.protocol.round import Round

_MOST_UNKNOWN = 2


class DeviceLoss:
    def __init__(self, hosts: Hosts, roster: Roster, round_: Round) -> None:
        self.hosts, self.roster, self.round = hosts, roster, round_

    def on_lost(self, at: float, member: Member, cause: Cause) -> list[Command]:
        """`member` is lost, and still known."""
        host, device = self.hosts.by_id.get(member.host), self.roster.device_of(member)
        afterwards = _afterwards(cause)
        if host is None or device is None or device in host.lost_devices or afterwards is Afterwards.AGAIN:
            return []
        if afterwards is Afterwards.UNKNOWN:
            host.device_faults[device] = host.device_faults.get(device, 0) + 1
            if host.device_faults[device] < _MOST_UNKNOWN:
                on_trial = because(Code.DEVICE_ON_TRIAL, device=device, host=host.id, why=cause.reason)
                return [self.round.decision(at, DecisionKind.DEVICE, on_trial, member=member.id)]
        return self._exclude(at, host, device, member, cause)

    def _exclude(self, at: float, host: Host, device: int, lost: Member, cause: Cause) -> list[Command]:
        host.lost_devices.add(device)
        why = because(Code.DEVICE_EXCLUDED, device=device, host=host.id, why=cause.reason)
        commands: list[Command] = [self.round.decision(at, DecisionKind.DEVICE, why, lost.rank, lost.id)]
        on_it = because(Code.ON_LOST_DEVICE, device=device, host=host.id)
        for id_, taken in list(self.roster.devices.get(host.id, {}).items()):
            if taken != device or id_ == lost.id:
                continue
            commands.append(KillMember(member=id_, reason=on_it))
            if self.roster.members[id_].rank is None:
                self.roster.remove(self.roster.members[id_])  # no rank goes there, and its end is no news
            else:
                self.round.state.killed.add(id_)  # it was to take the rank over, or to hand it over
        return commands


def _afterwards(cause: Cause) -> Afterwards:
    if cause.device_fault is not None:
        return cause.device_fault.afterwards
    return Afterwards.UNKNOWN if cause.lost_its_device else Afterwards.AGAIN
