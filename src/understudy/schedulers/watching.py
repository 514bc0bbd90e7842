"""Looks again and again at the nodes of the job that this process leads, and asks for what `node_rules` make of it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from understudy.errors import SchedulerError
from understudy.foundation.ids import HostId
from understudy.protocol.job import JobMachine
from understudy.protocol.requests import DrainHost, Request, UndrainHost
from understudy.protocol.sentences import sentence
from understudy.schedulers.node_rules import HostsKnown, NodeSeen, requests

_EVERY = 5.0  # seconds


class Led(Protocol):
    """The job, while this process leads it."""

    def machine(self) -> JobMachine | None:
        """None: this process does not lead."""
        ...

    def now(self) -> float: ...

    def handle(self, request: Request) -> None: ...


class Watch:
    """`look`: asks the scheduler for these hosts."""

    def __init__(
        self,
        job: Led,
        scheduler: str,
        look: Callable[[Collection[HostId]], Awaitable[tuple[NodeSeen, ...]]],
        say: Callable[[str], None],
    ) -> None:
        self._job, self._scheduler, self._look, self._say = job, scheduler, look, say
        self._asked: set[HostId] = set()
        self._said: dict[HostId | None, str] = {}  # of a host, or of the scheduler

    async def keep(self) -> None:
        while True:
            try:
                await self.once()
            except Exception as error:  # the job does not depend on this watch
                self._say_once(None, f"the watch of nodes failed, trying again: {type(error).__name__}: {error}")
            await asyncio.sleep(_EVERY)

    async def once(self) -> None:
        machine = self._job.machine()
        if machine is None:
            self._asked.clear()  # another coordinator may lead meanwhile, and asks by itself
            return
        hosts = [host.id for host in machine.hosts.present()]
        if not hosts or machine.stopped is not None:
            return
        try:
            seen = await self._look(hosts)
        except SchedulerError as error:
            self._say_once(None, f"{self._scheduler} cannot be asked for nodes, trying again: {error}")
            return
        self._said.pop(None, None)
        self._act(seen)

    def _act(self, seen: tuple[NodeSeen, ...]) -> None:
        machine = self._job.machine()  # it was asked for while others went on
        if machine is None or machine.stopped is not None:
            return
        present = machine.hosts.present()
        known = HostsKnown(
            present=[host.id for host in present],
            drained=[host.id for host in present if host.draining],
            asked=self._asked,
        )
        for request in requests(seen, known, self._scheduler, self._job.now()):
            why_not = machine.refusal(request)
            assert isinstance(request, DrainHost | UndrainHost)
            if why_not is not None:
                self._say_once(request.host, f"{request.reason}; refused for now: {sentence(why_not)}")
                continue
            self._said.pop(request.host, None)
            (self._asked.add if isinstance(request, DrainHost) else self._asked.discard)(request.host)
            self._job.handle(request)

    def _say_once(self, about: HostId | None, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            self._say(text)
