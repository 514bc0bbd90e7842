"""Everything that an intruder may try on a coordinator: with gRPC, with TLS, with HTTP.

Each attempt is a function of a `Target` and returns what it got for its trouble; `ATTEMPTS` names them, and says under
which name the coordinator counts them (None: the transport turns them away before the coordinator sees anything).
"""

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from understudy.foundation.ids import MemberId
from understudy.protocol import events as ev
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.policy import Policy
from understudy.wire import host_messages as wire
from understudy.wire import message_auth, transport
from understudy.wire.certificates import Certificates
from understudy.wire.messages import Measured
from understudy.wire.versions import PROTOCOL
from understudy_testkit.faults.light_hosts import policy_for

_TIMEOUT = 10.0  # seconds for one attempt
_GREETING_NAME = "understudy-nonce-bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A coordinator, and what an intruder may have got hold of. `ours`: the certificate of the host `name`,
    which was broken into. `client`: of a client of the API, which is also the name of its folder. `victim`: a member of
    an honest host, `victim_host`."""

    address: str
    token: str
    world: int
    ours: Certificates
    name: str
    client: Certificates
    others: Certificates
    victim: str
    victim_host: str
    policy: Policy | None = None  # the job's; one rank per host unless given


@dataclass(frozen=True, slots=True)
class Attempt:
    run: Callable[[Target], Awaitable[str]]
    counted_as: str | None


class GotThrough(Exception):
    """The coordinator took an intruder for one of its own."""


def greeting(target: Target, **changes: Any) -> wire.Attend:
    plain: dict[str, Any] = {
        "job": "job",
        "host": target.name,
        "ranks": 0,
        "spares": 0,
        "place": None,
        "store": "127.0.0.1:1",
        "term": 0,
        "members": [],
        "ends": [],
        "settings": msgspec.to_builtins(target.policy or policy_for(target.world)),
        "protocol": PROTOCOL,
    }
    return wire.Attend(**{**plain, **changes})


# -- with gRPC ---------------------------------------------------------------------------------------------------------


async def _raw(target: Target, certificates: Certificates | None, messages: list[bytes], nonce: bytes | None) -> str:
    """A call without seals. Returns its status."""
    channel = transport.open_channel(target.address, certificates)
    try:
        metadata = () if nonce is None else ((_GREETING_NAME, nonce),)
        call = channel.stream_stream(transport.PATH)(metadata=metadata)
        with contextlib.suppress(Exception):
            for message in messages:
                await call.write(message)
            await call.done_writing()
        code = await asyncio.wait_for(call.code(), _TIMEOUT)
    finally:
        await channel.close()
    if code is transport.grpc_module().StatusCode.OK:
        raise GotThrough("a call without seals was served")
    return str(code.name).lower()


async def _sealed(
    target: Target, *bodies: bytes, token: str = "", welcome: bool = False, certificates: Certificates | None = None
) -> str:
    """A call with our certificate, or another one. `welcome`: the first message will be taken, what follows must not
    be."""
    channel = transport.open_channel(target.address, certificates or target.ours)
    try:
        stream = await message_auth.call(channel.stream_stream(transport.PATH), token or target.token, _TIMEOUT)
        for body in bodies:
            await stream.write(body)
        answers = [wire.decode_to_host(data) async for data in _until_the_end(stream)]
    except transport.grpc_module().aio.AioRpcError as error:
        return str(error.code().name).lower()
    finally:
        await channel.close()
    taken = [answer for answer in answers if not isinstance(answer, wire.Refuse)]
    if len(taken) > welcome or (not answers and not welcome):
        raise GotThrough(f"it was answered with {answers}")
    return "refused"


async def _until_the_end(stream: message_auth.AuthenticatedStream) -> Any:
    while (data := await asyncio.wait_for(stream.read(), _TIMEOUT)) is not None:
        yield data
        if isinstance(wire.decode_to_host(data), wire.Refuse):
            return


async def without_tls(target: Target) -> str:
    return await _raw(target, None, [b"hello"], bytes(16))


async def with_a_foreign_certificate(target: Target) -> str:
    return await _raw(target, target.others, [b"hello"], bytes(16))


async def with_a_wrong_token(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target)), token=secrets.token_hex(16))


async def without_a_seal(target: Target) -> str:
    return await _raw(target, target.ours, [wire.encode(greeting(target))], secrets.token_bytes(16))


async def without_a_nonce(target: Target) -> str:
    return await _raw(target, target.ours, [secrets.token_bytes(secrets.randbelow(100))], None)


async def with_a_recording(target: Target) -> str:
    """A greeting that was good on another line."""
    recorder = _Recorder()
    line = await message_auth.call(recorder.call, target.token, _TIMEOUT)
    await line.write(wire.encode(greeting(target)))
    return await _raw(target, target.ours, recorder.written, recorder.nonce)


class _Recorder:
    """A coordinator of the intruder's own, to which an honest host has spoken. The host's nonce is known, too."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.nonce = b""

    def call(self, metadata: Any) -> "_Recorder":
        self.nonce = metadata[0][1]
        return self

    async def initial_metadata(self) -> Any:
        return ((_GREETING_NAME, secrets.token_bytes(16)),)

    async def write(self, data: bytes) -> None:
        self.written.append(data)


class _Twice:
    """A stream that says everything after the first message twice."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._first = stream, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def write(self, data: bytes) -> None:
        for _ in range(1 if self._first else 2):
            await self._stream.write(data)
        self._first = False


async def with_a_repetition(target: Target) -> str:
    """The same message twice, on its own line."""
    channel = transport.open_channel(target.address, target.ours)
    try:
        method = channel.stream_stream(transport.PATH)
        line = await message_auth.call(lambda metadata: _Twice(method(metadata=metadata)), target.token, _TIMEOUT)
        await line.write(wire.encode(greeting(target)))
        await line.write(wire.encode(Measured(generation=1, timings={})))
        async for _ in _until_the_end(line):
            pass
    except transport.grpc_module().aio.AioRpcError as error:
        return str(error.code().name).lower()
    finally:
        await channel.close()
    raise GotThrough("a message was taken twice")


async def with_nonsense(target: Target) -> str:
    nonsense = secrets.token_bytes(1 + secrets.randbelow(300))
    return await _sealed(target, wire.encode(greeting(target)), nonsense, welcome=True)


async def with_too_much(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target)), bytes(wire.LARGEST + 1), welcome=True)


async def with_far_too_much(target: Target) -> str:
    return await _raw(target, target.ours, [bytes(transport.LARGEST_TAKEN + 1)], bytes(16))


async def of_another_job(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target, job="another")))


async def with_other_settings(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target, settings={"world_size": target.world + 1})))


async def of_a_later_term(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target, term=2**40)))


async def speaking_for_others(target: Target) -> str:
    """A host that is part of the job says that a member of another host has ended."""
    cause = Cause(kind=CauseKind.SIGNAL, detail="so they say", exit_code=-9)
    lie = wire.from_event(ev.MemberLost(at=0.0, member=MemberId(target.victim), cause=cause))
    return await _sealed(target, wire.encode(greeting(target)), wire.encode(lie), welcome=True)


async def leaving_garbage_for_others(target: Target) -> str:
    """What another host's rank leaves to its replacement, as an insider would have it; then it gives itself away."""
    lies = [
        wire.encode(wire.Bequeathed(member=target.victim, content=b"garbage", rank=0, world=1, again=True, seal=seal))
        for seal in (b"", secrets.token_bytes(32))
    ]
    return await _sealed(target, wire.encode(greeting(target)), *lies, b"\xc1", welcome=True)


async def under_anothers_name(target: Target) -> str:
    """The name of an honest host, with a certificate that is for another one."""
    return await _sealed(target, wire.encode(greeting(target, host=target.victim_host)))


async def with_an_api_clients_certificate(target: Target) -> str:
    """With the token, and under the name that the certificate is for."""
    name = target.client.folder.name
    return await _sealed(target, wire.encode(greeting(target, host=name)), certificates=target.client)


async def with_an_api_clients_certificate_as_a_host(target: Target) -> str:
    """Under the name of the host that was broken into."""
    return await _sealed(target, wire.encode(greeting(target)), certificates=target.client)


async def posing_as_a_coordinator(target: Target) -> str:
    """An agent that turns to a server with the certificate of another host, or of a client of the API."""
    posing = secrets.choice((target.ours, target.client))
    honest = Certificates.read(target.ours.folder.parent / target.victim_host)
    grpc = transport.grpc_module()
    server = grpc.aio.server()
    heard: list[object] = []

    async def hear(_requests: Any, context: Any) -> None:
        heard.append(context.peer())

    handlers = {transport.METHOD: grpc.stream_stream_rpc_method_handler(hear)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(transport.SERVICE, handlers),))
    port = transport.add_port(server, "127.0.0.1:0", posing)
    await server.start()
    try:
        return await _raw(replace(target, address=f"127.0.0.1:{port}"), honest, [b"hello"], bytes(16))
    finally:
        await server.stop(None)
        if heard:
            raise GotThrough("an agent took it for a coordinator")


async def with_an_impossible_pace(target: Target) -> str:
    pace = wire.from_event(ev.PaceLearnt(at=0.0, pace=secrets.choice((5e-324, 1e300))))
    return await _sealed(target, wire.encode(greeting(target)), wire.encode(pace), welcome=True)


async def with_too_many_ranks(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target, ranks=1 + secrets.randbelow(1000) + target.world)))


async def of_an_unknown_run(target: Target) -> str:
    return await _sealed(target, wire.encode(greeting(target, run="20200101-000000-00000000")))


async def claiming_others(target: Target) -> str:
    """A greeting that claims a member of another host."""
    return await _sealed(target, wire.encode(greeting(target, members=[target.victim])), welcome=True)


# -- with HTTP ---------------------------------------------------------------------------------------------------------


def http_context(target: Target, certificates: Certificates | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=target.ours.authority.decode("ascii"))
    if certificates is not None:
        context.load_cert_chain(certificates.folder / "cert.pem", certificates.folder / "key.pem")
    return context


async def http(port: int, context: ssl.SSLContext | None, request: bytes) -> bytes:
    """What comes back, if anything."""
    name = None if context is None else "understudy"
    answer = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        try:
            writer.write(request)
            if context is None:
                with contextlib.suppress(OSError):  # the server may have closed it at the first byte
                    writer.write_eof()  # else what looks like the beginning of a handshake would be waited for
            answer = await asyncio.wait_for(reader.read(), _TIMEOUT)
        finally:
            writer.close()
    return answer


ATTEMPTS = {
    "without TLS": Attempt(without_tls, None),
    "with a certificate of another authority": Attempt(with_a_foreign_certificate, None),
    "with a wrong token": Attempt(with_a_wrong_token, "unauthorised"),
    "without a seal": Attempt(without_a_seal, "unauthorised"),
    "without a nonce": Attempt(without_a_nonce, "malformed"),
    "with a recorded greeting": Attempt(with_a_recording, "unauthorised"),
    "with a repeated message": Attempt(with_a_repetition, "replayed"),
    "with nonsense under a good seal": Attempt(with_nonsense, "malformed"),
    "with too large a message": Attempt(with_too_much, "oversized"),
    "with far too large a message": Attempt(with_far_too_much, None),
    "of another job": Attempt(of_another_job, "job"),
    "with other settings": Attempt(with_other_settings, "settings"),
    "that has obeyed a later term": Attempt(of_a_later_term, "later term"),
    "that speaks for another host": Attempt(speaking_for_others, "not its own"),
    "that claims another host's member": Attempt(claiming_others, "not its own"),
    "that leaves garbage for another host's rank": Attempt(leaving_garbage_for_others, "malformed"),
    "under the name of another host": Attempt(under_anothers_name, "certificate"),
    "with an API client's certificate and the token": Attempt(with_an_api_clients_certificate, "role"),
    "with an API client's certificate in the name of a host": Attempt(
        with_an_api_clients_certificate_as_a_host, "role"
    ),
    "that poses as a coordinator": Attempt(posing_as_a_coordinator, None),
    "with a pace that cannot be": Attempt(with_an_impossible_pace, "malformed"),
    "with more ranks than a host has": Attempt(with_too_many_ranks, "settings"),
    "of a run that never was": Attempt(of_an_unknown_run, "other run"),
}
