"""How commands speak with the HTTP API of a job: find it, ask it, follow the lead, and say plainly what is wrong."""

import argparse
import contextlib
import http.client
import json
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from understudy.cli.token_files import read_api_token
from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates
from understudy.wire.renewal import WARN_BEFORE, warning
from understudy.wire.roles import NAME, PartyRole, certified_in

REFUSED, UNREACHABLE, NOT_ALLOWED = 1, 3, 4
_TIMEOUT = 10.0  # seconds for an answer
_ADDRESS_FILE = "http.json"
_RUNS = Path("understudy-runs")


class ApiProblem(Exception):
    """Nothing came of it. `code`: of this command; `status`: of the answer, if there was one. `leader_url`: where a
    coordinator that does not lead sends us. `unsent`: no server can have seen the request."""

    def __init__(
        self,
        code: int,
        reason: str,
        advice: str,
        status: int | None = None,
        *,
        leader_url: str = "",
        unsent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.code, self.reason, self.advice, self.status = code, reason, advice, status
        self.leader_url, self.unsent = leader_url, unsent

    def lines(self) -> list[str]:
        word = {REFUSED: "refused", NOT_ALLOWED: "not allowed"}.get(self.code, "no answer")
        return [f"{word}: {self.reason}", f"to do: {self.advice}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run's folder is the last word of every command, or is given with `--run`."""
    text = f"folder of the run (default: the newest in ./{_RUNS})"
    parser.add_argument("run", metavar="RUN_DIR", type=Path, nargs="?", help=text)
    parser.add_argument("--run", dest="run_flag", metavar="RUN_DIR", type=Path, help="the same, as a flag")
    parser.add_argument("--api", metavar="URL", help="the job's API, as in http://127.0.0.1:8080, instead of a folder")
    parser.add_argument("--token-file", type=Path, help="file with the API token (default: $UNDERSTUDY_API_TOKEN)")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem, cert.pem, key.pem, for an API with https")


def find_run(args: argparse.Namespace) -> Path:
    if args.run is not None and args.run_flag is not None and args.run != args.run_flag:
        raise SettingsError(f"two runs are named: {args.run} and --run {args.run_flag}")
    given: Path | None = args.run if args.run is not None else args.run_flag
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
    """Of one API. Every request has a connection of its own. `run`: the folder in which the address of the API was
    found, and is looked for again."""

    url: str
    token: str
    certs: Path | None
    run: Path | None = None

    def get(self, path: str) -> Any:
        return self._reach(lambda client: client._ask("GET", path, None, {}))[1]

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """A key of its own, so that it acts once, also when it has to be sent again."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}

        def ask(client: Client) -> Any:
            try:
                return client._ask("POST", path, body, headers)
            except ApiProblem as problem:
                if problem.code != UNREACHABLE or problem.status is not None or problem.unsent:
                    raise
            try:
                return client._ask("POST", path, body, headers)
            except ApiProblem as problem:
                problem.unsent = False  # the first one may have been seen
                raise

        return self._reach(ask)[1]

    def leading(self) -> "tuple[Client, Any]":
        """The one that leads, or else this one, and what its page of the job shows."""
        client, job = self._reach(lambda client: client._ask("GET", "/v1/job", None, {}))
        after = None if job["leading"] else client._at(job.get("leader_url") or "")
        if after is not None:
            with contextlib.suppress(ApiProblem):
                theirs = after._ask("GET", "/v1/job", None, {})
                if theirs["leading"]:
                    return after, theirs
        return client, job

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

    def _reach(self, ask: "Callable[[Client], Any]") -> "tuple[Client, Any]":
        """Goes where the lead is: to the address that a standby names, or to the one that the run's folder has now.
        A request that one server may have seen is not sent to another, so it cannot be done twice."""
        client, tried = self, set[str]()
        while True:
            tried.add(client.url)
            try:
                return client, ask(client)
            except ApiProblem as problem:
                url = problem.leader_url
                if not url and problem.unsent and client.run is not None:
                    url = _read_url(client.run)
                after = client._at(url)
                if after is None or after.url in tried:
                    raise
                client = after

    def _at(self, url: str) -> "Client | None":
        """None: nowhere, or without the TLS that this one has; the token must not travel in the clear."""
        if not _is_good(url) or (self.url.startswith("https:") and not url.startswith("https:")):
            return None
        return replace(self, url=url.rstrip("/"))

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str]) -> Any:
        connection, unsent = self._connect(_TIMEOUT), True
        try:
            connection.connect()
            unsent = False
            response = self._send(connection, method, path, body, headers)
            content = response.read(16 * 1024 * 1024)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error, unsent=unsent) from None
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

    def _unreachable(self, error: Exception, *, unsent: bool = False) -> ApiProblem:
        if isinstance(error, ssl.SSLError):
            return ApiProblem(NOT_ALLOWED, f"{self.url}: {error}", "give --certs FOLDER of the same authority")
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ApiProblem(UNREACHABLE, f"{self.url} does not answer: {why}", "is the job still running?", unsent=unsent)

    def _problem(self, status: int, content: bytes) -> ApiProblem:
        leader_url = ""
        try:
            said = json.loads(content)
            reason, advice = str(said["reason"]), str(said["advice"])
            reason = "; ".join([reason, *map(str, said.get("problems", []))])
            leader_url = str(said.get("leader_url") or "")
        except (ValueError, TypeError, KeyError):
            reason, advice = f"{self.url} answered with {status}", "look at the address"
        if status in (401, 403):
            advice = f"{advice}; tokens come from $UNDERSTUDY_API_TOKEN or --token-file"
        code = NOT_ALLOWED if status in (401, 403) else UNREACHABLE if status == 503 else REFUSED
        return ApiProblem(code, reason, advice, status, leader_url=leader_url if status == 503 else "")


class _Https(http.client.HTTPSConnection):
    """A job's certificate is a coordinator's, for the name `understudy`, whatever its address. No other server sees the
    token."""

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        sock = self.sock = self._context.wrap_socket(plain, server_hostname=NAME)
        if why_not := certified_in(sock.getpeercert()).why_not(PartyRole.COORDINATOR):
            reason = f"{self.host}:{self.port}: the certificate of the server that answers there is {why_not}"
            raise ApiProblem(NOT_ALLOWED, reason, "look at the address, and at the certificates of its coordinator")

    _context: ssl.SSLContext


def _context(certs: Path | None) -> ssl.SSLContext:
    if certs is None:
        raise SettingsError("an API with https needs --certs FOLDER with ca.pem, cert.pem and key.pem")
    Certificates.read(certs, PartyRole.API_CLIENT)  # says what is missing, or that others may read the key
    try:
        context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        context.load_cert_chain(certs / "cert.pem", certs / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--certs {certs}: {error}") from None
    return context


def client_for(args: argparse.Namespace) -> Client:
    """Raises `ApiProblem` when the run has no API."""
    run = None if args.api else find_run(args)
    url = args.api if run is None else _url_of(run)
    if not _is_good(url):
        raise SettingsError(f"--api {url}: give it as http://HOST:PORT")
    _warn_of_the_end(args.certs)
    return Client(url.rstrip("/"), read_api_token(args.token_file), args.certs, run)


def _warn_of_the_end(certs: Path | None) -> None:
    """Of the caller's own certificates: no server knows them."""
    if certs is None:
        return
    certificates, now = Certificates.read(certs, PartyRole.API_CLIENT), time.time()
    for file, end in certificates.ends().items():
        if end - now < WARN_BEFORE:
            print(f"understudy: {warning(certificates, file, end, now)}", file=sys.stderr)


def _is_good(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _url_of(run: Path) -> str:
    url = _read_url(run)
    if not url:
        advice = f"start it with --http 127.0.0.1:0; if it has ended, see `understudy explain {run}`"
        reason = f"{run} has no API: it has ended, or runs without --http, or no coordinator of this folder leads"
        raise ApiProblem(UNREACHABLE, reason, advice)
    return url


def _read_url(run: Path) -> str:
    """Empty: no leader has written one."""
    try:
        return str(json.loads((run / _ADDRESS_FILE).read_text())["url"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def standby_problem(client: Client, job: Mapping[str, Any]) -> ApiProblem:
    """Of a command that only the leader can answer."""
    return ApiProblem(UNREACHABLE, f"{client.url} does not lead the job", standby_advice(job))


def standby_advice(job: Mapping[str, Any]) -> str:
    if job.get("leader_url"):
        return f"the API of the one that leads is {job['leader_url']}, which does not answer; ask again in a while"
    if job["leader"]:
        return f"{job['leader']} leads (its address for agents); give the address of its API with --api"
    return "it knows of no leader; ask again in a while"
