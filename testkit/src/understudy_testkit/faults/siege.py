"""Everything that is tried on a coordinator at once: intruders, insiders, nonsense, and connections that never begin.

Each function does one of these for as long as it is told and raises `NotProven` when an intruder got through. What the
job makes of it is for the caller to look at.
"""

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from understudy.wire import host_messages as wire
from understudy.wire import message_auth, transport
from understudy.wire.certificates import Certificates
from understudy_testkit.faults import intruders
from understudy_testkit.faults.assertions import NotProven
from understudy_testkit.faults.idlers import idlers
from understudy_testkit.faults.insider import Insider, must_be_refused
from understudy_testkit.faults.intruders import Target

SAME = ("generation", "stage", "term", "leading")
"""What of a coordinator's status no attack may change."""

_STATUS = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
_TELL_EVERY = 10.0  # seconds


async def status(port: int, target: Target) -> dict[str, object]:
    """As an honest client of the coordinator's HTTP port is told."""
    answer = await intruders.http(port, intruders.http_context(target, target.client), _STATUS)
    found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


async def intrude(target: Target, names: Sequence[str], rounds: int) -> Counter[str]:
    """Every kind so many times, in random order, by all of these hosts at once. Returns how often each was refused."""
    waiting = [name for name in intruders.ATTEMPTS for _ in range(rounds)]
    random.shuffle(waiting)
    refused: Counter[str] = Counter()

    async def one_after_another(insider: str) -> None:
        own = replace(target, name=insider, ours=Certificates.read(target.ours.folder.parent / insider))
        while waiting:
            name = waiting.pop()
            try:
                await intruders.ATTEMPTS[name].run(own)
            except intruders.GotThrough as error:
                raise NotProven(f"an intruder {name} got through: {error}") from None
            refused[name] += 1

    await asyncio.gather(*map(one_after_another, names))
    return refused


async def lie(target: Target, messages: int, others: tuple[str, ...]) -> int:
    """A host of the job that offers a spare says all that can be said, about itself and `others` (members first, then
    hosts). Returns on how many lines: each ends with the first message that is refused."""
    sent = lines = 0
    members = tuple(name for name in others if name.startswith("m-"))
    began = told = time.monotonic()
    while sent < messages:
        lines += 1
        channel = transport.open_channel(target.address, target.ours)
        with contextlib.suppress(transport.grpc_module().aio.AioRpcError, asyncio.InvalidStateError):
            stream = await message_auth.call(channel.stream_stream(transport.PATH), target.token, 10.0)
            await stream.write(wire.encode(intruders.greeting(target, spares=1, agent=target.name)))
            hearing = asyncio.create_task(_hear(stream))
            while sent < messages and not hearing.done():
                own = tuple(f"m-{number}" for number in range(2, 6))
                message = Insider(sent, own=own, others=others, world=2).message()
                await stream.write(message)
                sent += 1
                if must_be_refused(message, target.name, members):
                    await asyncio.wait((hearing,), timeout=30.0)
                    if not hearing.done():
                        raise NotProven(f"message {sent - 1} of an insider was not refused: {message!r}")
            hearing.cancel()
        await channel.close()
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            print(f"  {sent}/{messages} messages of an insider, {lines} lines, {told - began:.0f} s", flush=True)
    return lines


async def _hear(stream: message_auth.AuthenticatedStream) -> None:
    with contextlib.suppress(Exception):
        while await stream.read() is not None:
            pass


async def idle(ports: Sequence[int], target: Target, connections: int, seconds: float) -> float:
    """So many connections that never finish a handshake, to these ports of a coordinator (the first is of HTTP), from
    many addresses and for so long. Returns how long the slowest honest request took meanwhile."""
    with idlers() as some:
        for number in range(connections):
            some.connect(ports, number)
            if number % 50 == 0:
                await asyncio.sleep(0)  # others in this process have a line to the coordinator
        some.speak()
        slowest, began = 0.0, time.monotonic()
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            await status(ports[0], target)
            slowest = max(slowest, time.monotonic() - asked)
            await asyncio.sleep(0.1)
        return slowest


async def knock(port: int, target: Target, requests: int) -> int:
    """Nonsense over HTTP, with a certificate of an API client, of an agent (which is refused everything) and without.
    Returns how many were refused."""
    contexts = [*(intruders.http_context(target, whose) for whose in (target.client, target.ours, None)), None]
    methods = [b"GET", b"POST", b"", b"GET " * 3000, b"\x16\x03\x01", secrets.token_bytes(40)]
    paths = [b"/status", b"/", b"/../token", b"http://x/", b"\x00", secrets.token_bytes(20)]
    refused = 0
    for number in range(requests):
        context = contexts[number % len(contexts)]
        request = b"%s %s HTTP/%s\r\n\r\n" % (
            random.choice(methods),
            random.choice(paths),
            random.choice([b"1.1", b""]),
        )
        answer = await intruders.http(port, context, request)
        served = answer.startswith(b"HTTP/1.1 200")
        if served and not (context is contexts[0] and request.startswith(b"GET /status HTTP/1.1")):
            raise NotProven(f"{request!r} was answered with {answer[:200]!r}")
        refused += not served
    return refused


async def must_stay_the_same(port: int, target: Target, before: dict[str, object], well: Callable[[], bool]) -> None:
    """The job is as it was before the siege."""
    now = await status(port, target)
    if changed := {name: (before[name], now[name]) for name in SAME if before[name] != now[name]}:
        raise NotProven(f"the job has noticed: {changed}")
    if not well():
        raise NotProven("an honest host has lost its line or its member")
