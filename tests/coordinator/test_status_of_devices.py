"""What the status page says of the devices of a host."""

from understudy.coordinator.status import _devices
from understudy.foundation.ids import HostId
from understudy.protocol.devices import give_to_spare
from understudy.protocol.hosts import Hosts
from understudy.protocol.roster import Roster

A = HostId("a")


def test_each_members_device_and_those_that_were_lost() -> None:
    hosts, roster = Hosts(), Roster()
    host = hosts.join(A, ranks=1, spares=2, devices=3)
    host.lost_devices.add(0)
    for _ in range(2):
        give_to_spare(roster.new_spare(A), host, roster)
    assert _devices(host, roster) == {"devices": {"m-0": 1, "m-1": 2}, "lost_devices": [0]}


def test_a_host_that_has_told_of_none_is_shown_as_ever() -> None:
    assert _devices(Hosts().join(A, ranks=1, spares=0), Roster()) == {}
