"""Authenticates every message between an agent and a coordinator (HMAC), so that only parties that know the job's token
are heard.

Both sides give a number that was never used before (a nonce). Token and nonces make a key for this connection only, and
every message carries its sequence number and an authentication code of both. So the token itself never travels; a
recorded message cannot be replayed, neither on this connection nor on another; and a coordinator proves itself to an
agent like an agent to it. Nothing here is encrypted: that is what TLS is for.

While the token of a job is rotated a coordinator knows two. The code of the first message tells which of them the agent
uses, and the connection goes on with that one.
"""

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from typing import Any

from understudy.errors import WireError

_NONCE = "understudy-nonce-bin"  # binary metadata of a call
_NONCE_LENGTH, _CODE_LENGTH, _SEQUENCE_LENGTH = 16, 16, 8
OVERHEAD = _CODE_LENGTH + _SEQUENCE_LENGTH
_HOST, _COORDINATOR = b"host", b"coordinator"


class _Direction:
    """One of the two directions of a connection: counts, makes codes and compares them."""

    def __init__(self, key: bytes, speaker: bytes) -> None:
        self._key, self._speaker, self._next = key, speaker, 0

    def _code(self, sequence: bytes, body: bytes) -> bytes:
        return hmac.digest(self._key, self._speaker + sequence + body, "sha256")[:_CODE_LENGTH]

    def sign(self, body: bytes) -> bytes:
        sequence = self._next.to_bytes(_SEQUENCE_LENGTH)
        self._next += 1
        return self._code(sequence, body) + sequence + body

    def is_authentic(self, data: bytes) -> bool:
        code, sequence, body = data[:_CODE_LENGTH], data[_CODE_LENGTH:OVERHEAD], data[OVERHEAD:]
        return len(data) >= OVERHEAD and hmac.compare_digest(code, self._code(sequence, body))

    def verified(self, data: bytes) -> bytes:
        sequence, body = data[_CODE_LENGTH:OVERHEAD], data[OVERHEAD:]
        if not self.is_authentic(data):
            raise WireError("the token of the job is another one, or the message was changed", kind="unauthorised")
        if int.from_bytes(sequence) != self._next:
            raise WireError(f"message {int.from_bytes(sequence)} instead of {self._next}", kind="replayed")
        self._next += 1
        return body


class AuthenticatedStream:
    """Has the `read` and `write` of the stream below; `read` gives None at its end. `others`: the directions that the
    other side may use instead."""

    def __init__(
        self,
        stream: Any,
        reading: _Direction,
        writing: _Direction,
        others: Sequence[tuple[_Direction, _Direction]] = (),
    ) -> None:
        self._stream, self._reading, self._writing, self._others = stream, reading, writing, others

    async def read(self) -> bytes | None:
        data = await self._stream.read()
        if not isinstance(data, bytes):
            return None
        for reading, writing in self._others:
            if reading.is_authentic(data):
                self._reading, self._writing = reading, writing
        self._others = ()
        return self._reading.verified(data)

    async def write(self, body: bytes) -> None:
        await self._stream.write(self._writing.sign(body))


def _directions(token: str, of_host: bytes, of_coordinator: bytes) -> tuple[_Direction, _Direction]:
    key = hmac.digest(token.encode(), b"understudy line 1" + of_host + of_coordinator, "sha256")
    return _Direction(key, _HOST), _Direction(key, _COORDINATOR)


async def call(method: Any, token: str, limit: float) -> AuthenticatedStream:
    """The agent's side. `method`: of a gRPC channel. Raises `TimeoutError` when no coordinator answers."""
    own = secrets.token_bytes(_NONCE_LENGTH)
    stream = method(metadata=((_NONCE, own),))
    try:
        metadata = await asyncio.wait_for(stream.initial_metadata(), limit)
        if not metadata:  # a call that has failed says so only when it is read
            await asyncio.wait_for(stream.read(), limit)
        theirs = _nonce_in(metadata)
    except BaseException:
        stream.cancel()
        raise
    from_host, from_coordinator = _directions(token, own, theirs)
    return AuthenticatedStream(stream, from_coordinator, from_host)


async def answer(context: Any, token: str, *others: str) -> AuthenticatedStream:
    """The coordinator's side. `others`: tokens that are taken as well. It reads before it writes."""
    theirs = _nonce_in(context.invocation_metadata())
    own = secrets.token_bytes(_NONCE_LENGTH)
    await context.send_initial_metadata(((_NONCE, own),))
    ways = [_directions(one, theirs, own) for one in (token, *others)]
    return AuthenticatedStream(context, *ways[0], ways[1:])


def _nonce_in(metadata: Any) -> bytes:
    found = [value for name, value in metadata or () if name == _NONCE]
    if len(found) != 1 or not isinstance(found[0], bytes) or len(found[0]) != _NONCE_LENGTH:
        raise WireError("a connection that does not begin as ours do", kind="malformed")
    return found[0]
