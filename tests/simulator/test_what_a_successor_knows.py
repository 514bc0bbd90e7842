"""After a takeover everything that the old coordinator knew is known: compared field by field, in simulated histories.

At moments in which the world trains, a second machine takes over from the facts that were recorded last; every host
tells it again what it tells a new coordinator. Then the two machines must know the same. What may differ is listed,
with the reason; a new field is compared unless it is added there.
"""

import dataclasses
from random import Random
from typing import Any

import pytest

from understudy.foundation.ids import HostId
from understudy.protocol import events as ev
from understudy.protocol.crash_loop import CrashLoop
from understudy.protocol.ending import EndingState
from understudy.protocol.fallback import FallbackState
from understudy.protocol.hosts import Host, Hosts
from understudy.protocol.job import JobMachine
from understudy.protocol.migration import MigrationState
from understudy.protocol.pool import PoolState
from understudy.protocol.replica_check import ReplicaCheckState
from understudy.protocol.roster import Member, Roster
from understudy.protocol.round_state import RoundState
from understudy.protocol.stages import Stage
from understudy.protocol.state import State
from understudy.protocol.takeover import take_over
from understudy.protocol.watchdog import WatchdogState
from understudy_testkit.simulator.cluster import ClusterSimulation
from understudy_testkit.simulator.cluster_scenarios import cluster_simulation_of, draw_cluster_scenario
from understudy_testkit.simulator.network import Weather
from understudy_testkit.simulator.phases import MemberPhase

MAY_DIFFER: dict[type, dict[str, str]] = {
    RoundState: {
        "reason": "words about the last recovery",
        "opened_at": "a time",
        "attempts": "of recoveries in a row; it is over",
        "attempted_at": "a time",
        "positions": "of the last recovery, which is over",
        "leavers_at": "of the last recovery",
        "not_finite": "of the last recovery",
        "durable": "of the last recovery",
        "asked_for_checkpoints": "of the last recovery",
        "plan": "of the last recovery",
        "boundary": "of the last recovery",
        "awaited": "nobody is in training",
        "joining": "nobody is in training",
        "deadline": "a time",
        "resend_at": "a time",
        "killed": "an order that may have been lost is given again",
        "pace": "told again by hosts, from their own pages",
    },
    Roster: {
        "members": "compared one by one",
        "understudies": "whoever prepared for a move is dismissed",
        "leavers": "of a move that is over",
        "parked": "compared as a set: the order in which they say it again",
        "starting": "the same",
        "slots": "follow from the members",
        "spares_on": "follow from the members",
        "next_number": "what was started since the last record is told by its host",
    },
    Member: {"assigned_at": "a time", "connected": "until its host has been heard it counts as connected"},
    Hosts: {"by_id": "compared one by one"},
    Host: {
        "suspect_until": "a time of another clock",
        "silent_since": "nobody is silent",
        "patience": "of a silence",
        "spoke_at": "a time",
        "failures_in_a_row": "counted since the last record",
    },
    PoolState: {"complained": "said once more", "replacements": "as above", "refill_at": "a time"},
    EndingState: {"finished": "told again"},
    MigrationState: {
        "told": "asked for anew",
        "ask_again_at": "a time",
        "reasons": "a rank whose move was just given up",
    },
    ReplicaCheckState: {"told": "told anew for the next comparison", "agreed": "an older one is as good to go back to"},
    FallbackState: {},
    CrashLoop: {},
    WatchdogState: {
        name.name: "what agents see is told again"
        for name in dataclasses.fields(WatchdogState)
        if name.name != "barren"
    },
}


def differences(one: Any, two: Any, where: str) -> list[str]:
    allowed = MAY_DIFFER[type(one)]
    return [
        f"{where}.{field.name}: {getattr(one, field.name)!r} was {getattr(two, field.name)!r}"
        for field in dataclasses.fields(one)
        if field.name not in allowed and getattr(one, field.name) != getattr(two, field.name)
    ]


def all_differences(new: JobMachine, old: JobMachine) -> list[str]:
    found: list[str] = []
    for part in (field.name for field in dataclasses.fields(State) if field.name != "now"):
        found += differences(getattr(new.state, part), getattr(old.state, part), part)
    known = {id_: member for id_, member in old.roster.members.items() if not old.roster.is_understudy(member)}
    known = {id_: member for id_, member in known.items() if not member.leaving}
    if set(new.roster.members) != set(known):
        found.append(f"members: {sorted(new.roster.members)} were {sorted(known)}")
    for id_ in set(new.roster.members) & set(known):
        found += differences(new.roster.members[id_], known[id_], f"members[{id_}]")
    for host in old.hosts.by_id:
        found += differences(new.hosts.by_id[host], old.hosts.by_id[host], f"hosts[{host}]")
    if set(new.roster.parked) != set(old.roster.parked):
        found.append(f"parked: {sorted(new.roster.parked)} were {sorted(old.roster.parked)}")
    return found


class Comparing(ClusterSimulation):
    """Takes over in thought, again and again, and goes on with the old machine."""

    def begin_comparing(self, seed: int) -> None:
        self._when, self.compared = Random(f"compare {seed}"), 0

    def _receive_said(self, machine: JobMachine, host: HostId) -> None:
        """As `_attach` tells a new leader."""
        living = [member for member in self._on(host) if member.alive or member.id in self._unnoticed]
        ids = tuple(member.id for member in living)
        known = machine.hosts.by_id.get(host)
        machine.handle(ev.HostHeard(at=self.now, host=host, members=ids))
        if known is None or not known.present:
            place = self.places[host]
            machine.handle(ev.HostJoined(at=self.now, host=host, ranks=place.ranks, spares=place.spares))
        for member in living:
            for event in list(self._said.get(member.id, {}).values()):
                generation = getattr(event, "generation", machine.generation)
                of_one = (ev.StepTold, ev.DigestTold, ev.BadStateTold, ev.PositionReported, ev.MemberResumed)
                if isinstance(event, of_one) and generation < machine.generation:
                    continue  # the leader drops these before the machine sees them
                machine.handle(event)

    def _calm(self) -> bool:
        machine = self.machine
        all_there = all(self.reachable(host) and host not in self.dead for host in self.places)
        nobody_between = not self._unnoticed and not machine.round.state.killed and not machine.roster.leavers
        warm = {member.id for member in self.members.values() if member.alive and member.parked and member.rank is None}
        all_heard = (
            len(machine.round.state.twin_keys) == self.script.world_size
            and set(machine.roster.parked) == warm
            and not any(member.phase is MemberPhase.FINISHED for member in self.members.values())
        )
        return (
            machine.stage is Stage.TRAINING
            and not machine.released
            and not machine.hosts.silent
            and all_there
            and nobody_between
            and all_heard
            and all(host.present for host in machine.hosts.by_id.values())
            and all(member.connected for member in machine.roster.members.values())
        )

    def tell_machine(self, event: ev.Event) -> None:
        super().tell_machine(event)
        if self.leadership.facts is None or self._when.random() > 0.2 or not self._calm():
            return
        new, _ = take_over(self.policy, self.leadership.facts, self.now)
        if new.generation != self.machine.generation or new.stage is not Stage.TRAINING:
            return  # the last record is older than the last recovery: it would be opened again
        for host in self.places:
            self._receive_said(new, host)
        wrong = all_differences(new, self.machine)
        assert not wrong, "\n".join([*wrong, self.tell_story()[-3000:]])
        self.compared += 1


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_a_successor_knows_what_its_predecessor_knew(first: int) -> None:
    compared = 0
    for seed in range(first, first + 10):
        drawn = draw_cluster_scenario(seed)
        script = dataclasses.replace(drawn.scenario.script, steps=60, check_replicas_every=seed % 4)
        scenario = dataclasses.replace(drawn.scenario, script=script, weather=Weather(delay=0.001))
        simulation = cluster_simulation_of(dataclasses.replace(drawn, scenario=scenario))
        simulation.__class__ = Comparing
        assert isinstance(simulation, Comparing)
        simulation.begin_comparing(seed)
        simulation.run()
        compared += simulation.compared
    assert compared > 100
