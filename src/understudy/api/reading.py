"""Pages that show: the job, its members, spares, hosts, events and recoveries."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from understudy.api import views
from understudy.api.actions import leading
from understudy.api.auth import Refused
from understudy.api.event_stream import EventStream
from understudy.api.job import JobInterface
from understudy.api.limits import Limits
from understudy.api.models import Events, HostView, JobView, MemberView, Overview, RecoveryView

_BREATH = 15.0  # seconds until a silent stream says that it is still there
_LARGEST = 2**53
After = Annotated[int, Query(ge=0, le=_LARGEST, description="only events after this number")]


def router(interface: JobInterface, limits: Limits, leader_url: Callable[[], Awaitable[str]]) -> APIRouter:
    """`leader_url`: where the API of the coordinator that leads is, if this one does not."""
    pages = APIRouter(tags=["reading"])
    streams = _Streams(limits.streams)

    @pages.get("/job")
    async def job() -> JobView:
        """The job as a whole. Also answered by a coordinator that stands by."""
        return views.job(interface, None if interface.leads() else await leader_url() or None)

    @pages.get("/overview")
    async def overview() -> Overview:
        """The job, its members, spares and hosts at one moment. Also answered by a coordinator that stands by."""
        url = None if interface.leads() else await leader_url() or None
        return views.overview(interface, url)

    @pages.get("/members")
    async def members() -> list[MemberView]:
        """Every member that holds a rank, by rank."""
        return views.members(interface, leading(interface))

    @pages.get("/spares")
    async def spares() -> list[MemberView]:
        """Warm ones first; those that prepare to take over a rank last, with that rank."""
        return views.spares(leading(interface))

    @pages.get("/hosts")
    async def hosts() -> list[HostView]:
        return views.hosts(leading(interface), interface.now(), interface.certificate_ends())

    @pages.get("/events")
    async def events(after: After = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Events:
        """Decisions and finished recoveries. Numbers count from the beginning of this process."""
        return _listed(interface.event_stream, after, limit)

    @pages.get(
        "/events/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def stream(
        after: After = 0,
        last_event_id: Annotated[str | None, Header(max_length=20, pattern=r"^[0-9]{1,15}$")] = None,
    ) -> StreamingResponse:
        """The same as they come (server-sent events), until the job ends."""
        begin = after if last_event_id is None else int(last_event_id)
        streams.check()
        return StreamingResponse(
            streams.of(interface.event_stream, begin),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    @pages.get("/recoveries")
    async def recoveries(limit: Annotated[int, Query(ge=1, le=200)] = 20) -> list[RecoveryView]:
        """The newest recoveries with their phases, oldest first."""
        return [views.recovery(record, interface.now()) for record in interface.event_stream.recoveries(limit)]

    return pages


def _listed(event_stream: EventStream, after: int, limit: int) -> Events:
    found = event_stream.after(after, limit)
    newest = found[-1].number if found else min(after, event_stream.newest)
    missed = views.missed(after, found[0].number if found else None)
    return Events(events=[views.event(numbered) for numbered in found], newest=newest, missed=missed)


class _Streams:
    """So many at once and no more: each keeps a connection."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, 0

    def check(self) -> None:
        if self._open >= self._most:
            advice = "close one, or ask for /v1/events?after=N now and then"
            raise Refused(429, "too many streams", "too many event streams are open", advice, {"retry-after": "5"})

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def of(self, event_stream: EventStream, after: int) -> AsyncIterator[str]:
        with self._counted():
            yield ": events of this job\n\n"
            async for numbered in event_stream.follow(after, _BREATH):
                if numbered is None:
                    yield ": nothing new\n\n"
                else:
                    event = views.event(numbered)
                    data = json.dumps(event.model_dump())
                    yield f"id: {event.number}\nevent: {event.type}\ndata: {data}\n\n"
