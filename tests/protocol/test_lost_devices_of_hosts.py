"""A process is lost together with its device: what follows for the device, and where its rank goes."""

from dataclasses import replace

import pytest
from tests.protocol.test_devices_of_processes import devices_of, job, recover, said
from tests.protocol.test_job_stories import KILLED, lost, m, stop_of

from understudy.foundation.ids import MemberId
from understudy.protocol import events as ev
from understudy.protocol.advice import advice_on
from understudy.protocol.causes import Afterwards, Cause, CauseKind, DeviceFault
from understudy.protocol.commands import AssignRank, KillMember, RecordGeneration, StartMember, StopJob
from understudy.protocol.hosts import THIS_HOST
from understudy.protocol.job import JobMachine
from understudy.protocol.reasons import Code
from understudy.protocol.requests import UndrainHost
from understudy.protocol.sentences import sentence
from understudy.protocol.takeover import facts_of, take_over

OFF_THE_BUS = DeviceFault(text="Xid 79 (the device has fallen off the bus)", afterwards=Afterwards.NEVER)
PAGE_FAULT = DeviceFault(text="Xid 31 (memory page fault)", afterwards=Afterwards.AGAIN, blames_script=True)
ODD = DeviceFault(text="Xid 999 (see NVIDIA's list of Xid errors)", afterwards=Afterwards.UNKNOWN)
ENDED_ITSELF = Cause(kind=CauseKind.EXIT, detail="its device could not be used any more", exit_code=71)
GONE = replace(ENDED_ITSELF, device_fault=OFF_THE_BUS)


def killed_by(fault: DeviceFault | None) -> Cause:
    return replace(KILLED, device_fault=fault)


def lost_devices(machine: JobMachine) -> set[int]:
    return machine.hosts.by_id[THIS_HOST].lost_devices


def test_the_rank_goes_to_a_spare_on_another_device_and_none_is_put_on_the_lost_one() -> None:
    machine, _ = job(devices=3, spares=1)
    commands = machine.handle(lost(1, GONE))
    assert devices_of(commands) == {"m-2": 2}
    (told,) = said(commands)
    assert told == (
        "device 1 of this host is not used any more: its device could not be used any more; its device reported Xid 79 "
        "(the device has fallen off the bus)"
    )
    recover(machine, survivor=0, joiner=2)
    assert devices_of(machine.handle(ev.Tick(at=20.0))) == {"m-3": 0}, "a shadow: the lost device gets none"


def test_where_the_device_is_well_its_shadow_takes_over() -> None:
    machine, _ = job(devices=2, spares=2)
    commands = machine.handle(lost(1, killed_by(PAGE_FAULT)))
    assert devices_of(commands) == {"m-3": 1} and said(commands) == [] and not lost_devices(machine)


def test_shadows_of_a_lost_device_are_ended_and_others_come() -> None:
    machine, _ = job(devices=3, spares=3)  # a spare device, and a shadow on both ranks' devices
    commands = machine.handle(lost(1, killed_by(OFF_THE_BUS)))
    assert [each.member for each in commands if isinstance(each, KillMember)] == [m(4)]
    assert devices_of(commands) == {"m-2": 2}
    assert machine.handle(lost(4)) == (), "that it has ended is no news"


def test_without_another_device_the_next_strategy_is_taken_with_that_reason() -> None:
    machine, _ = job(devices=2, spares=1)
    commands = machine.handle(lost(1, GONE))
    stop = stop_of(commands)
    assert stop.reason.has(Code.NO_DEVICE) or stop.reason.has(Code.TOO_FEW_DEVICES)
    assert "no swap: " in sentence(stop.reason) and "Xid 79" in sentence(stop.reason)
    assert "undrain" in advice_on(stop.reason, "")


def test_an_unknown_fault_leaves_the_device_one_more_chance() -> None:
    machine, _ = job(devices=3, spares=2)
    commands = machine.handle(lost(1, killed_by(ODD)))
    assert devices_of(commands)["m-2"] == 2
    (told,) = said(commands)
    assert told.startswith("device 1 of this host is used once more")
    recover(machine, survivor=0, joiner=2)
    (start,) = [each for each in machine.handle(ev.Tick(at=20.0)) if isinstance(each, StartMember)]
    assert start.device == 1
    excluded = machine.handle(lost(4, killed_by(ODD), at=21.0))  # the spare that has it now
    assert lost_devices(machine) == {1} and "not used any more" in said(excluded)[0]
    assert any(isinstance(each, RecordGeneration) for each in excluded), "a successor must know it"


@pytest.mark.parametrize(
    ("cause", "unknown"), [(ENDED_ITSELF, 1), (KILLED, 0)], ids=["code 71 without a word of the driver", "a kill"]
)
def test_a_process_that_gives_its_device_up_counts_without_a_word_of_the_driver(cause: Cause, unknown: int) -> None:
    machine, _ = job(devices=3, spares=1)
    machine.handle(lost(1, cause))
    assert machine.hosts.by_id[THIS_HOST].device_faults == ({1: 1} if unknown else {})
    assert not lost_devices(machine)


def test_a_device_that_is_at_fault_is_no_failure_of_the_script() -> None:
    assert ENDED_ITSELF.own_fault and replace(ENDED_ITSELF, device_fault=PAGE_FAULT).own_fault
    assert not GONE.own_fault
    contained = DeviceFault(text="Xid 94 (a contained ECC error)", afterwards=Afterwards.AGAIN)
    assert not replace(ENDED_ITSELF, device_fault=contained).own_fault
    assert not killed_by(PAGE_FAULT).own_fault, "it was killed from outside"


def test_a_successor_knows_the_lost_devices_and_undrain_uses_them_again() -> None:
    machine, _ = job(devices=3, spares=1)
    machine.handle(lost(1, GONE))
    recover(machine, survivor=0, joiner=2)
    machine, _ = take_over(machine.policy, facts_of(machine, 15.0), 0.0)
    assert lost_devices(machine) == {1}
    machine.handle(ev.HostHeard(at=0.5, host=THIS_HOST, members=(m(0), m(2))))
    commands = machine.handle(UndrainHost(at=1.0, host=THIS_HOST, reason="it was repaired"))
    assert not lost_devices(machine)
    assert any("device 1 had been excluded" in sentence(getattr(each, "reason", None)) for each in commands[:1])  # type: ignore[arg-type]


def test_where_nothing_is_known_of_devices_a_fault_is_only_told() -> None:
    machine, _ = job(devices=0, spares=1)
    commands = machine.handle(lost(1, GONE))
    assert said(commands) == [] and not lost_devices(machine)
    (assign,) = [each for each in commands if isinstance(each, AssignRank)]
    assert assign.member == MemberId("m-2") and not any(isinstance(each, StopJob) for each in commands)
