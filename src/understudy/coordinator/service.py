"""The coordinator on the network: takes the streams of agents and hands them to the leader.

Everything that arrives is untrusted until its seal is checked; what is malformed, too large, said twice or from
elsewhere is refused and counted. A party that does not know the token learns nothing but that.
"""

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from understudy.coordinator import origin
from understudy.coordinator.hosts import HostConnection
from understudy.coordinator.leader import Leader
from understudy.coordinator.rate import LineRate
from understudy.coordinator.runs import RunOver
from understudy.errors import WireError
from understudy.foundation.clock import SystemClock
from understudy.wire import host_messages as wire
from understudy.wire import transport, versions
from understudy.wire.certificates import Certificates
from understudy.wire.job_tokens import JobTokens
from understudy.wire.message_auth import AuthenticatedStream, answer

MAX_HOSTS = 2100  # one process serves 2,000 within 3 s (`claims/many-agents`); 2,500 idle ones took 315 MB
_GREETING_TIMEOUT = 10.0  # seconds until a stream must have named itself
_FINAL = ("settings", "job", "other run")  # there is no use in trying again

_STANDBY = ("standby", "later term", "awaiting")  # passes by itself
_MOST_COMPLAINTS = 10_000


class Service:
    """`leader` is None while this coordinator stands by; `leads` names the leader then."""

    def __init__(
        self,
        job: str,
        token: str | JobTokens,
        *,
        greeting_limit: float = _GREETING_TIMEOUT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.leader: Leader | None = None
        self.leads = ""
        self.refused: Counter[str] = Counter()
        self.job, self._tokens, self._say = job, JobTokens.of(token), say
        self.slowed = 0  # messages that had to wait because their host had said too much
        self.clock = SystemClock()
        self.make_rate: Callable[[], LineRate] = lambda: LineRate(self.clock)
        self._complained: set[tuple[str, str]] = set()
        self._greeting_limit = greeting_limit
        self._server: Any = None
        self._secure = False

    async def open(self, address: str, certificates: Certificates | None, max_hosts: int = MAX_HOSTS) -> int:
        """`max_hosts`: that may be connected at a time, with those that have not named themselves."""
        grpc = transport.grpc_module()
        self._server = grpc.aio.server(options=transport.server_options(max_hosts))
        handler = grpc.stream_stream_rpc_method_handler(self._attend)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(transport.SERVICE, {transport.METHOD: handler}),)
        )
        self._secure = certificates is not None
        port = transport.add_port(self._server, address, certificates)
        await self._server.start()
        return port

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0.5)

    # -- one stream ---------------------------------------------------------------------------------------------------

    async def _attend(self, _requests: Any, context: Any) -> None:
        try:
            stream = await answer(context, *self._tokens.present)
            attend = await asyncio.wait_for(self._greeting(stream), self._greeting_limit)
        except (WireError, TimeoutError) as error:
            await self._turn_away(context, error)
            return
        certified = transport.certified_caller(context) if self._secure else None
        try:
            origin.check_role(attend, certified)
        except WireError as error:
            await self._explain(stream, attend, error)
            return
        leader = self.leader
        if leader is None or not leader.leading():
            await self._refuse(stream, wire.Refuse(reason="this coordinator stands by", leader=self.leads), "standby")
            return
        try:
            versions.check("the coordinator", f"host {attend.host}", attend.protocol, attend.version)
            origin.check_certificate(attend, certified)
            if attend.job != self.job:
                raise WireError(f"this coordinator is for job {self.job}, not for {attend.job}", kind="job")
            line = leader.welcome(attend, str(context.peer()))
        except RunOver as over:
            self.refused[over.kind] += 1
            with contextlib.suppress(Exception):
                await stream.write(wire.encode(leader.lines.farewell(over.stop)))
            return
        except WireError as error:
            await self._explain(stream, attend, error)
            return
        await self._serve(leader, line, attend, stream, context)

    async def _greeting(self, stream: AuthenticatedStream) -> wire.Attend:
        data = await stream.read()
        if data is None:
            raise WireError("it ended before it had named itself", kind="no greeting")
        attend = wire.decode_from_host(data)
        if not isinstance(attend, wire.Attend):
            raise WireError("it must name itself first", kind="no greeting")
        return attend

    async def _turn_away(self, context: Any, error: Exception) -> None:
        """Refused with a status of the call; it may not know the token, so it could not verify an authenticated
        message."""
        kind = error.kind if isinstance(error, WireError) else "no greeting"
        self.refused[kind] += 1
        code = "UNAUTHENTICATED" if kind in ("unauthorised", "replayed") else "INVALID_ARGUMENT"
        await context.abort(transport.grpc_module().StatusCode[code], str(error) or "it did not name itself")

    async def _explain(self, stream: AuthenticatedStream, attend: wire.Attend, error: WireError) -> None:
        """Refused with a sentence: it knows the token."""
        self._complain(attend, error)
        await self._refuse(stream, wire.Refuse(reason=str(error), final=_is_final(attend, error)), error.kind)

    def _complain(self, attend: wire.Attend, error: WireError) -> None:
        """What only the operator can mend, once for each agent: it will try again and again."""
        known = (attend.agent, error.kind) in self._complained
        if error.kind not in _STANDBY and not known and len(self._complained) < _MOST_COMPLAINTS:
            self._complained.add((attend.agent, error.kind))
            self._say(f"refused: {error}")

    async def _refuse(self, stream: AuthenticatedStream, refusal: wire.Refuse, kind: str) -> None:
        self.refused[kind] += 1
        with contextlib.suppress(Exception):
            await stream.write(wire.encode(refusal))

    async def _serve(
        self, leader: Leader, line: HostConnection, attend: wire.Attend, stream: AuthenticatedStream, context: Any
    ) -> None:
        """Until one side ends it. The handler of a call must not be cancelled from inside: gRPC would not report it."""
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.on_close = lambda: None if closed.done() else closed.set_result(None)
        reading = asyncio.create_task(self._read(leader, line, attend, stream))
        writing = asyncio.create_task(self._write(leader, line, stream))
        why = "the connection ended"
        try:
            await asyncio.wait((reading, writing, closed), return_when=asyncio.FIRST_COMPLETED)
            why = reading.result() if reading.done() else "its line was closed"
        except WireError as error:
            why = f"it sent something that it may not send: {error}"
            await self._turn_away(context, error)
        except Exception as error:
            self.refused["not understood"] += 1
            why = f"what it sent could not be handled: {error!r}"
            self._say(f"host {line.host}: {why}\n{traceback.format_exc()}")
            await context.abort(transport.grpc_module().StatusCode.INTERNAL, "the coordinator could not handle it")
        finally:
            reading.cancel()
            writing.cancel()
            line.on_close = lambda: None
            leader.gone(line, why)
        if not reading.done():
            await context.abort(transport.grpc_module().StatusCode.ABORTED, "the coordinator has closed this line")

    async def _read(
        self, leader: Leader, line: HostConnection, attend: wire.Attend, stream: AuthenticatedStream
    ) -> str:
        leader.attended(attend)
        rate = self.make_rate()
        while (data := await stream.read()) is not None:
            if (pause := rate.spend(len(data))) > 0:
                self.slowed += 1
                await asyncio.sleep(pause)
            if not leader.leading():
                return "this coordinator does not lead any more"
            message = wire.decode_from_host(data)
            if isinstance(message, wire.Farewell):
                line.said_farewell = True
                return f"its agent ended: {message.reason}"
            leader.heard(line, message)
        return "the connection ended"

    async def _write(self, leader: Leader, line: HostConnection, stream: AuthenticatedStream) -> None:
        """An order that waited here may be older than the leadership."""
        with contextlib.suppress(Exception):  # a connection that does not take it has ended, and reading says why
            while True:
                data = await line.take()
                if not leader.leading():
                    return
                await stream.write(data)


def _is_final(attend: wire.Attend, error: WireError) -> bool:
    """There is no use in trying again. A host that trains already does not end because it got a wrong certificate, or
    because the coordinators were upgraded too far."""
    return error.kind in _FINAL or (error.kind in ("certificate", "role", "version") and not attend.term)
