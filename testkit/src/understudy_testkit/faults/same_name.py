"""Jobs of one name, one after the other in one etcd: each must really run, whatever became of the one before it.

A job here is a real coordinator process and two light hosts, whose members end their scripts when they are told to.
"""

import asyncio
import enum
from dataclasses import replace
from pathlib import Path

from understudy.foundation.ids import Generation, MemberId
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy_testkit.faults import coordinators
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.coordinators import CoordinatorProcess
from understudy_testkit.faults.light_hosts import Heard, LightHost, Meeting, policy_for
from understudy_testkit.faults.waiting import until

_HOSTS = ("first", "second")
_TAKEOVER_TIMEOUT = 2.0  # seconds that a new coordinator waits for the hosts of an abandoned run
_DONE = "the job succeeded"


class Ending(enum.Enum):
    """What becomes of a run."""

    FINISHED = "every rank ended its script"
    ABANDONED = "its coordinator was killed, and its hosts went"
    GIVEN_UP = "the same, and the next coordinator is started with --new-run"


class EndingHost(LightHost):
    """Its members end their scripts when `end_scripts` is called."""

    def __init__(self, name: str, meeting: Meeting) -> None:
        super().__init__(name, 1, 0, meeting, dict[int, Heard]())
        self.trained = 0
        self._generation = Generation(0)

    def told(self, member: MemberId, command: cmd.ToMember) -> None:
        match command:
            case cmd.ReleaseMembers():
                self.lose(member, Cause(kind=CauseKind.EXIT, detail="its script ended", exit_code=0))
                return
            case cmd.AssignRank(generation=generation):
                self._generation, self.trained = generation, self.trained + 1
        super().told(member, command)

    def end_scripts(self) -> None:
        for member in list(self.members):
            self.client.handle(ev.MemberFinished(at=0.0, member=member, generation=self._generation))


async def run_again(folder: Path, store: str, token: str, endings: list[Ending]) -> list[str]:
    """One run per ending. Returns the identities of all runs; raises `NotProven` if one did not run, or told the
    success of another."""
    runs: list[str] = []
    former: Ending | None = None
    for number, ending in enumerate(endings):
        place = folder / f"run-{number}"
        await asyncio.to_thread(place.mkdir, parents=True)
        flags = ("--store", store, *(("--new-run",) if former is Ending.GIVEN_UP else ()))
        with coordinators.running(place, "coordinator", token, *flags) as coordinator:
            run = await _one(coordinator, token, ending)
        if run in runs:
            raise NotProven(f"run {number} is taken for run {run}, whose end was: {former}")
        runs.append(run)
        former = ending
    return runs


async def _one(coordinator: CoordinatorProcess, token: str, ending: Ending) -> str:
    """A whole run, up to its end. Returns its identity."""
    policy = replace(policy_for(len(_HOSTS)), takeover_patience=_TAKEOVER_TIMEOUT)
    address = await asyncio.to_thread(lambda: coordinator.address)
    meeting = Meeting(address=address, token=token, world=len(_HOSTS), policy=policy)
    hosts = [EndingHost(name, meeting) for name in _HOSTS]
    for host in hosts:
        host.client.start()
    try:
        await until(lambda: _trains(coordinator, hosts), "two hosts to train in a run of their own")
        run = coordinator.find(r"run (\S+) begins")
        if _DONE in coordinator.output.read_text():
            raise NotProven(f"run {run} has just begun, and its coordinator said that {_DONE}")
        if ending is not Ending.FINISHED:
            coordinator.process.kill()
            return run
        for host in hosts:
            host.end_scripts()
        await until(lambda: all(host.stopped for host in hosts), "the end of both hosts")
        code = await asyncio.to_thread(coordinator.process.wait, 60)
    finally:
        for host in hosts:
            await host.client.close("its run is over")
    if code != 0 or coordinator.output.read_text().count(_DONE) != 1:
        raise NotProven(f"run {run} ended with {code}:\n{coordinator.output.read_text()[-2000:]}")
    return run


def _trains(coordinator: CoordinatorProcess, hosts: list[EndingHost]) -> bool:
    if coordinator.process.poll() is not None:
        raise NotProven(f"the coordinator ended without a host:\n{coordinator.output.read_text()[-2000:]}")
    return all(host.trained for host in hosts) and coordinator.status()["stage"] == "training"
