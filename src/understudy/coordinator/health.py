"""HTTP beside gRPC, for people and probes: `/health` and `/status`, as JSON. Reads, and changes nothing.

Two pages need no framework: one request per connection, nothing but GET and HEAD, no bodies, and a limit on
everything. That is little enough to be read and fuzzed as a whole, and it adds no package to a coordinator.
"""

import asyncio
import contextlib
import json
import re
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus

from understudy.wire.certificates import Certificates
from understudy.wire.transport import check_address, split_address

_LARGEST_HEAD = 8192  # bytes
_LIMIT = 5.0  # seconds for a request and its answer
_MOST_AT_ONCE = 64

Page = Callable[[], Mapping[str, object]]
_REQUEST_LINE = re.compile(rb"(GET|HEAD) (/[!-~]*) HTTP/1\.[01]")
_BODY = re.compile(rb"^(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_METHOD = re.compile(rb"[A-Z]+ /[!-~]* HTTP/1\.[01]")


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class HealthServer:
    """`pages`: by path. `refused` counts by the reason of the answer."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.refused: Counter[str] = Counter()
        self._pages = pages
        self._open = 0
        self._server: asyncio.Server | None = None

    async def open(self, address: str, certificates: Certificates | None) -> int:
        """Both sides prove who they are, or the address is of this host only. Returns the port."""
        check_address("--http", address, certificates)
        host, port = split_address("--http", address)
        secure = None if certificates is None else certificates.server_context()
        wait = None if secure is None else _LIMIT
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=_LARGEST_HEAD, ssl=secure, ssl_handshake_timeout=wait
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_LIMIT):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (TimeoutError, ConnectionError, ssl.SSLError):
            self.refused["no request in time"] += 1
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            method, path = await self._request(reader)
            if self._open > _MOST_AT_ONCE:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
            page = self._pages.get(path)
            if page is None:
                raise _Refused(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._pages)}")
            return _response(HTTPStatus.OK, page(), with_body=method == b"GET")
        except _Refused as refused:
            self.refused[refused.status.phrase.lower()] += 1
            return _response(refused.status, {"error": str(refused)}, with_body=True)

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


def _response(status: HTTPStatus, content: Mapping[str, object], *, with_body: bool) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
