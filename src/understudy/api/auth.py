"""Stands before every page: authentication, permission, rate and size. What is not allowed goes no further.

Pure ASGI, so that a stranger's body is never read and a body is never larger than the limit, whatever its header says.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from understudy.api.limits import Bucket, Buckets, Limits
from understudy.api.metrics import Metrics
from understudy.api.tokens import ANONYMOUS, Caller, Role, Tokens
from understudy.foundation.clock import Clock
from understudy.wire.connections import peer_of
from understudy.wire.roles import Certified, PartyRole

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LONGEST_TOKEN = 512
_MOST_PROBERS = 1024  # addresses
_OPEN = ("/health",)  # for probes, which have no token
_ROLES = (("/v1/actions/", Role.ACT, Bucket.ACT), ("/v1/webhooks/", Role.WEBHOOK, Bucket.WEBHOOK))
CALLER = "understudy.caller"
"""Where in the scope of a request its caller is."""
CERTIFIED = "understudy.certified"
"""Where in the state of a request's connection is what the caller's certificate says; None without TLS."""


class Refused(Exception):
    """Becomes an answer. `kind`: under which it is counted."""

    def __init__(
        self, status: int, kind: str, reason: str, advice: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.kind, self.reason, self.advice = status, kind, reason, advice
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return json.dumps({"reason": self.reason, "advice": self.advice, "problems": []}).encode("ascii")


class AccessControl:
    """`tokens` None: no token file was given, so every client that gets here may read, and none may ask for
    anything."""

    def __init__(
        self,
        app: App,
        *,
        tokens: Tokens | None,
        buckets: Buckets,
        limits: Limits,
        clock: Clock,
        metrics: Metrics,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._app, self._tokens, self._buckets = app, tokens, buckets
        self._on_fault = on_fault
        self._limits, self._clock, self._metrics = limits, clock, metrics
        self._probes = Buckets(limits, most=_MOST_PROBERS)
        self._inside: Counter[str] = Counter()  # requests, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # websockets and lifespan are not for us
        begun = _Begun(send)
        try:
            self._check_certificate(scope)
            if scope["path"] in _OPEN:
                self._admit_probe(scope)
                await self._app(scope, _replay(b"", receive), begun)
                return
            caller = scope[CALLER] = self._admit(scope)
            with self._counted(caller.name):
                body = await self._read(scope, receive)
                await self._app(scope, _replay(body, receive), begun)
        except Refused as refused:
            self._metrics.refused(refused.kind)
            await _answer(refused, send)
        except Exception as error:  # the job goes on, whatever happens here
            self._metrics.refused("our own fault")
            self._on_fault(error)
            if not begun.yes:
                await _answer(Refused(500, "our own fault", "this failed by our own fault", "please report it"), send)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        inside, limits = self._inside, self._limits
        if inside.total() >= limits.at_once or inside[name] >= limits.at_once_each:
            raise Refused(429, "too many at once", "too many requests at once", "try again in a second", _retry(1.0))
        inside[name] += 1
        try:
            yield
        finally:
            inside[name] -= 1

    # -- authentication and rate --------------------------------------------------------------------------------------

    def _check_certificate(self, scope: Scope) -> None:
        """An agent's is not for the API: what a host needs to train must not open more than that."""
        certified: Certified | None = scope.get("state", {}).get(CERTIFIED)
        why_not = "" if certified is None else certified.why_not(PartyRole.API_CLIENT)
        if why_not:
            self._limit("strangers", Bucket.STRANGER)
            raise Refused(403, "certificate", f"your certificate is {why_not}", "use one of an API client")

    def _admit(self, scope: Scope) -> Caller:
        path = str(scope["path"])
        role, bucket = next(((role, bucket) for start, role, bucket in _ROLES if path.startswith(start)), _READ)
        caller = ANONYMOUS if self._tokens is None else self._caller(scope, self._tokens)
        if not caller.may(role):
            self._limit(caller.name, Bucket.STRANGER)
            raise Refused(403, "role", *_why_not(caller, role, self._tokens is None))
        self._limit(caller.name, bucket)
        return caller

    def _admit_probe(self, scope: Scope) -> None:
        """Each address has a limit of its own, so that a flood from one does not make the probes of others fail. Its
        body is not read, and no request waits behind it."""
        peer = peer_of(scope["client"]) if scope.get("client") else "an unknown address"
        wait = self._probes.take(peer, Bucket.READ, self._clock.now())
        if wait:
            raise self._too_often("probes of one address", Bucket.READ, wait)

    def _caller(self, scope: Scope, tokens: Tokens) -> Caller:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if kind.lower() == b"bearer" and 0 < len(token) <= _LONGEST_TOKEN:
            caller = tokens.caller(token.decode("latin-1").strip())
            if caller is not None:
                return caller
        self._limit("strangers", Bucket.STRANGER)
        what = "the token is not known" if given else "there is no token"
        advice = "send the header `Authorization: Bearer TOKEN` with a token of --http-tokens"
        raise Refused(401, "token", what, advice, {"www-authenticate": "Bearer"})

    def _limit(self, name: str, bucket: Bucket) -> None:
        wait = self._buckets.take(name, bucket, self._clock.now())
        if wait:
            raise self._too_often(name, bucket, wait)

    def _too_often(self, name: str, bucket: Bucket, wait: float) -> Refused:
        text = f"too many requests of this kind ({bucket.value}) by {name}"
        return Refused(429, "rate", text, f"try again in {math.ceil(wait)} s", _retry(wait))

    # -- the body -----------------------------------------------------------------------------------------------------

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        most = self._limits.largest_body
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and (len(value) > 12 or int(value) > most):
                raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "gone", "the caller has gone", "send the whole request")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            text = f"the body did not come within {self._limits.body_seconds:g} s"
            raise Refused(408, "slow", text, "send it at once") from None

    def _too_large(self) -> Refused:
        text = f"the body is larger than {self._limits.largest_body} bytes"
        return Refused(413, "size", text, "send less, in several requests")


_READ = (Role.READ, Bucket.READ)


class _Begun:
    """Passes an answer on, and knows whether it has begun. One request per connection: connections are few."""

    def __init__(self, send: Send) -> None:
        self._send, self.yes = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.yes = True
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)


def _why_not(caller: Caller, role: Role, no_tokens: bool) -> tuple[str, str]:
    if no_tokens:
        return (
            "this server was started without tokens, so it only shows",
            "start it with --http-tokens FILE (docs/api.md says how)",
        )
    return f"the token {caller.name} has not the role {role.value}", "use another token, or give this one the role"


def _retry(wait: float) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(wait)))}


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, and afterwards whatever comes, which is the news that the caller has gone."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


async def _answer(refused: Refused, send: Send) -> None:
    body = refused.body()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "connection": "close",
        **refused.headers,
    }
    listed = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
