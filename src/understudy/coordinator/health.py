"""HTTP beside gRPC, for people and probes: `/health` and `/status`, as JSON. Reads, and changes nothing.

Two pages need no framework: one request per connection, nothing but GET and HEAD, no bodies, and a limit on
everything. That is little enough to be read and fuzzed as a whole, and it adds no package to a coordinator.
"""

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from understudy.wire.certificates import Certificates
from understudy.wire.connections import NO_REQUEST, Acceptor, ConnectionLimits, Refusals, Ticket, listen
from understudy.wire.roles import PartyRole, certified_peer
from understudy.wire.transport import check_address, split_address

_LARGEST_HEAD = 8192  # bytes
_TIMEOUT = 5.0  # seconds for a request and its answer
_CONNECTIONS = ConnectionLimits(in_all=128, per_peer=32)

Page = Callable[[], Mapping[str, object]]
_REQUEST_LINE = re.compile(rb"(GET|HEAD) (/[!-~]*) HTTP/1\.[01]")
_BODY = re.compile(rb"^(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_METHOD = re.compile(rb"[A-Z]+ /[!-~]* HTTP/1\.[01]")


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class NotReady(Exception):
    """Raised by a page: it is answered with 503 and this content."""

    def __init__(self, content: Mapping[str, object]) -> None:
        super().__init__("not ready")
        self.content = content


class HealthServer:
    """`pages`: by path. `refused` counts by the reason of the answer."""

    def __init__(
        self, pages: Mapping[str, Page], *, flag: str = "--http", say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._pages, self._flag, self._say = pages, flag, say
        self._listening: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    async def open(self, address: str, certificates: Certificates | None) -> int:
        """Both sides prove their identity, or the address is of this host only. Returns the port."""
        check_address(self._flag, address, certificates)
        return self._open(address, None if certificates is None else certificates.server_context())

    async def open_unauthenticated(self, address: str) -> int:
        """Without certificates, on any address: only for pages that tell nothing about the job. Returns the port."""
        return self._open(address, None)

    def _open(self, address: str, secure: ssl.SSLContext | None) -> int:
        self._listening = listen(self._flag, *split_address(self._flag, address))
        self._acceptor = Acceptor(
            self._protocol,
            secure=secure,
            limits=_CONNECTIONS,
            refusals=Refusals(f"{self._flag} {address}", self._say, self._count),
        )
        self._acceptor.begin(self._listening)
        return int(self._listening.getsockname()[1])

    async def close(self) -> None:
        if self._acceptor is not None and self._listening is not None:
            await self._acceptor.close()
            self._listening.close()

    def _count(self, kind: str) -> None:
        self.refused[kind] += 1

    def _protocol(self, ticket: Ticket) -> asyncio.BaseProtocol:
        return _CountedProtocol(ticket, lambda reader, writer: self._serve(reader, writer, ticket))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ticket: Ticket) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                certified = certified_peer(writer)
                why_not = "" if certified is None else certified.why_not(PartyRole.API_CLIENT)
                writer.write(await self._answer(reader, ticket, why_not))
                await writer.drain()
        except TimeoutError:
            ticket.refuse(NO_REQUEST)
        except (ConnectionError, ssl.SSLError):
            pass  # dropped, and counted where that was done; or the peer has gone
        finally:
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, ticket: Ticket, why_not: str) -> bytes:
        """`why_not`: the caller's certificate is no API client's."""
        try:
            method, path = await self._request(reader)
            ticket.requested()
            if why_not:
                raise _Refused(HTTPStatus.FORBIDDEN, f"your certificate is {why_not}")
            page = self._pages.get(path)
            if page is None:
                raise _Refused(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._pages)}")
            return self._shown(page, with_body=method == b"GET")
        except _Refused as refused:
            self.refused[refused.status.phrase.lower()] += 1
            return _response(refused.status, {"error": str(refused)}, with_body=True)

    def _shown(self, page: Page, *, with_body: bool) -> bytes:
        try:
            return _response(HTTPStatus.OK, page(), with_body=with_body)
        except NotReady as not_ready:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, not_ready.content, with_body=with_body)

    async def _request(self, reader: asyncio.StreamReader) -> tuple[bytes, str]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long") from None
        except asyncio.IncompleteReadError:
            raise _Refused(HTTPStatus.BAD_REQUEST, "the request ended early") from None
        line, _, headers = head.partition(b"\r\n")
        found = _REQUEST_LINE.fullmatch(line)
        if found is None and _METHOD.fullmatch(line):
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        if found is None or _BODY.search(headers):
            raise _Refused(HTTPStatus.BAD_REQUEST, "not a request for a page")
        return found[1], found[2].decode("ascii").partition("?")[0]


class _CountedProtocol(asyncio.StreamReaderProtocol):
    def __init__(
        self, ticket: Ticket, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        super().__init__(asyncio.StreamReader(limit=_LARGEST_HEAD), serve)
        self._ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._ticket.made(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticket.gone()
        super().connection_lost(exc)


def _response(status: HTTPStatus, content: Mapping[str, object], *, with_body: bool) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
