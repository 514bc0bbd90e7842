"""How commands speak with the HTTP API of a job: find it, ask it, and say plainly what is wrong."""

import argparse
import http.client
import json
import socket
import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from understudy.cli.token_files import read_api_token
from understudy.errors import SettingsError
from understudy.wire.certificates import NAME, Certificates

REFUSED, UNREACHABLE, NOT_ALLOWED = 1, 3, 4
_TIMEOUT = 10.0  # seconds for an answer
_ADDRESS_FILE = "http.json"
_RUNS = Path("understudy-runs")


class ApiProblem(Exception):
    """Nothing came of it. `code`: of this command; `status`: of the answer, if there was one."""

    def __init__(self, code: int, reason: str, advice: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.advice, self.status = code, reason, advice, status

    def lines(self) -> list[str]:
        word = {REFUSED: "refused", NOT_ALLOWED: "not allowed"}.get(self.code, "no answer")
        return [f"{word}: {self.reason}", f"to do: {self.advice}"]


def add_arguments(parser: argparse.ArgumentParser, *, positional: bool) -> None:
    """`positional`: the run's folder is what the command is about, so it needs no flag."""
    text = f"folder of the run (default: the newest in ./{_RUNS})"
    if positional:
        parser.add_argument("run", metavar="RUN_DIR", type=Path, nargs="?", help=text)
    else:
        parser.add_argument("--run", metavar="RUN_DIR", type=Path, help=text)
    parser.add_argument("--api", metavar="URL", help="the job's API, as in http://127.0.0.1:8080, instead of a folder")
    parser.add_argument("--token-file", type=Path, help="file with the API token (default: $UNDERSTUDY_API_TOKEN)")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem, cert.pem, key.pem, for an API with https")


def find_run(given: Path | None) -> Path:
    if given is not None:
        if not given.is_dir():
            raise SettingsError(f"{given}: no such folder")
        return given
    runs = sorted(_RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    if not runs:
        raise SettingsError(f"there is no run in ./{_RUNS}: name its folder, or give --api URL")
    return runs[-1].parent


@dataclass(frozen=True, slots=True)
class Client:
    """Of one API. Every request has a connection of its own."""

    url: str
    token: str
    certs: Path | None

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None, {})

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """A key of its own, so that it acts once, also when it has to be sent again."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self._ask("POST", path, body, headers)
        except ApiProblem as problem:
            if problem.code != UNREACHABLE or problem.status is not None:
                raise
            return self._ask("POST", path, body, headers)

    def stream(self, path: str) -> Iterator[dict[str, Any]]:
        """Server-sent events, until the other side ends them."""
        connection = self._connect(timeout=60.0)  # it says at least every 15 s that it is there
        try:
            response = self._send(connection, "GET", path, None, {"Accept": "text/event-stream"})
            if response.status != 200:
                raise self._problem(response.status, response.read())
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str]) -> Any:
        connection = self._connect(_TIMEOUT)
        try:
            response = self._send(connection, method, path, body, headers)
            content = response.read(16 * 1024 * 1024)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        if response.status != 200:
            raise self._problem(response.status, content)
        try:
            return json.loads(content)
        except ValueError:
            raise ApiProblem(UNREACHABLE, f"{self.url} is no API of Understudy", "look at the address", 200) from None

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        sent = {"Content-Type": "application/json", **headers}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        return connection.getresponse()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return _Https(host, port, timeout=timeout, context=_context(self.certs))

    def _unreachable(self, error: Exception) -> ApiProblem:
        if isinstance(error, ssl.SSLError):
            return ApiProblem(NOT_ALLOWED, f"{self.url}: {error}", "give --certs FOLDER of the same authority")
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ApiProblem(UNREACHABLE, f"{self.url} does not answer: {why}", "is the job still running?")

    def _problem(self, status: int, content: bytes) -> ApiProblem:
        try:
            said = json.loads(content)
            reason, advice = str(said["reason"]), str(said["advice"])
            reason = "; ".join([reason, *map(str, said.get("problems", []))])
        except (ValueError, TypeError, KeyError):
            reason, advice = f"{self.url} answered with {status}", "look at the address"
        if status in (401, 403):
            advice = f"{advice}; tokens come from $UNDERSTUDY_API_TOKEN or --token-file"
        code = NOT_ALLOWED if status in (401, 403) else UNREACHABLE if status == 503 else REFUSED
        return ApiProblem(code, reason, advice, status)


class _Https(http.client.HTTPSConnection):
    """A job's certificate is for the name `understudy`, whatever its address."""

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        self.sock = self._context.wrap_socket(plain, server_hostname=NAME)

    _context: ssl.SSLContext


def _context(certs: Path | None) -> ssl.SSLContext:
    if certs is None:
        raise SettingsError("an API with https needs --certs FOLDER with ca.pem, cert.pem and key.pem")
    Certificates.read(certs)  # says what is missing, or that others may read the key
    try:
        context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        context.load_cert_chain(certs / "cert.pem", certs / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--certs {certs}: {error}") from None
    return context


def client_for(args: argparse.Namespace) -> Client:
    """Raises `ApiProblem` when the run has no API."""
    url = args.api or _url_of(find_run(args.run))
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        good = False
    if not good:
        raise SettingsError(f"--api {url}: give it as http://HOST:PORT")
    return Client(url.rstrip("/"), read_api_token(args.token_file), args.certs)


def _url_of(run: Path) -> str:
    try:
        return str(json.loads((run / _ADDRESS_FILE).read_text())["url"])
    except (OSError, ValueError, TypeError, KeyError):
        advice = f"start it with --http 127.0.0.1:0; if it has ended, see `understudy explain {run}`"
        raise ApiProblem(UNREACHABLE, f"{run} has no API: it has ended, or runs without --http", advice) from None
