"""The flags of the HTTP API, for the commands that run a job. Its packages are loaded only when `--http` is given."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates
from understudy.wire.transport import check_address

if TYPE_CHECKING:
    from understudy.api.event_stream import EventStream
    from understudy.api.setup import ApiRequest

HTTP = "where the API, /metrics and /health are, HOST:PORT (docs/api.md); port 0 is a free one (default: nowhere)"
TOKENS = "file with the tokens of the API and their roles, read again every 10 s; without one it only shows"
HEALTH = "where /health and /ready are, HOST:PORT, plain HTTP for probes without a certificate (default: nowhere)"
RULES = "file that says which alert leads to which action (docs/api.md)"


def installed() -> bool:
    """Without loading them."""
    return all(find_spec(name) is not None for name in ("fastapi", "uvicorn", "prometheus_client"))


def read_api_request(args: argparse.Namespace, certificates: Certificates | None) -> "ApiRequest | None":
    """Says what is wrong before anything is started."""
    if args.http is None:
        for flag in ("http_tokens", "alert_rules"):
            if getattr(args, flag) is not None:
                raise SettingsError(f"--{flag.replace('_', '-')} has no meaning without --http HOST:PORT")
        return None
    check_address("--http", args.http, certificates)
    try:
        from understudy.api.setup import ApiRequest
    except ImportError as error:
        raise SettingsError(f"--http needs more packages ({error.name}): pip install 'understudy[api]'") from None
    return ApiRequest.read(args.http, certificates, _path(args.http_tokens), _path(args.alert_rules))


def make_event_stream(api: "ApiRequest | None") -> "EventStream | None":
    """The journal that the API listens to, for the coordinator that is made before it."""
    if api is None:
        return None
    from understudy.api.event_stream import EventStream

    return EventStream()


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
