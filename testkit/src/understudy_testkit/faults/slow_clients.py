"""Clients of an HTTPS server that take more than their share: bodies that never end, floods of probes, heads that are
too large. And an honest one beside them, which must be answered."""

import concurrent.futures
import contextlib
import secrets
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 30.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class HttpsServer:
    """`context`: of a client that the server trusts."""

    port: int
    context: ssl.SSLContext

    @staticmethod
    def at(port: int, certificates: Path) -> "HttpsServer":
        """`certificates`: the folder of such a client."""
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        return HttpsServer(port, context)

    def connect(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), _TIMEOUT, (source, 0))
        try:
            return self.context.wrap_socket(plain, server_hostname="understudy")
        except BaseException:
            plain.close()
            raise

    def ask(self, request: bytes, source: str = "127.0.0.1") -> int:
        """The status of the answer. 0: there was none."""
        with contextlib.suppress(OSError), self.connect(source) as line:
            line.sendall(request)
            return status_of(line)
        return 0


def status_of(line: ssl.SSLSocket) -> int:
    """0: the connection ended without an answer."""
    with contextlib.suppress(OSError):
        words = line.recv(65536).split(b" ", 2)
        return int(words[1]) if len(words) > 2 else 0
    return 0


def request(path: str, token: str | None = None, *, method: str = "GET", more: str = "") -> bytes:
    known = "" if token is None else f"Authorization: Bearer {token}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{known}{more}\r\n".encode()


def slow_bodies(server: HttpsServer, path: str, token: str, count: int) -> list[ssl.SSLSocket]:
    """Requests whose bodies begin and do not go on. The caller closes them."""
    begun = request(path, token, method="POST", more="Content-Type: application/json\r\nContent-Length: 1000\r\n")
    lines = []
    for _ in range(count):
        line = server.connect()
        line.sendall(begun + b'{"a')
        lines.append(line)
    return lines


def flood_of_probes(server: HttpsServer, count: int, source: str) -> Counter[int]:
    """As fast as four clients of one address can."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return Counter(pool.map(lambda _: server.ask(request("/health"), source), range(count)))


def large_heads(server: HttpsServer, token: str, rounds: int) -> Counter[int]:
    """One long header, many short ones, a long path, a head without an end."""
    answers: Counter[int] = Counter()
    for _ in range(rounds):
        answers[server.ask(request("/v1/job", token, more=f"X-Long: {secrets.token_hex(20_000)}\r\n"))] += 1
        many = "".join(f"X-{number}: {secrets.token_hex(8)}\r\n" for number in range(3000))
        answers[server.ask(request("/v1/job", token, more=many))] += 1
        answers[server.ask(request(f"/v1/{'x' * 40_000}", token))] += 1
        answers[server.ask(b"GET /v1/job HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)] += 1
    return answers


def slowest_answer(server: HttpsServer, honest: bytes, times: int, source: str = "127.0.0.3") -> float:
    """Seconds, of so many honest requests. Raises `AssertionError` if one is not answered with 200."""
    slowest = 0.0
    for _ in range(times):
        began = time.monotonic()
        status = server.ask(honest, source)
        assert status == 200, f"an honest request was answered with {status}"
        slowest = max(slowest, time.monotonic() - began)
    return slowest
