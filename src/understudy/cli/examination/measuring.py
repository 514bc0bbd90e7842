"""`understudy doctor --peer`: the way from a rank's host to a spare's host, measured over one TCP connection.

Small amounts first, then four times as many, until one takes long enough to tell the speed: so a slow way is not filled
with more than it can carry away. What is measured is one connection; a transfer may use several.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from understudy.cli.examination import clocks, route, versions
from understudy.cli.examination.finding import Finding, amount, rate, span
from understudy.cli.examination.peer_connection import (
    EXAMINATION_TIMEOUT,
    GREETING_TIMEOUT,
    LARGEST_ROUND,
    PeerConnection,
    ask_time,
    ask_versions,
    fetch_round,
    introduce,
    say_goodbye,
    send_round,
)
from understudy.errors import WireError

_PINGS = 50
_FAR = 0.1  # seconds of a round trip
_LOPSIDED = 3.0  # so many times faster one way than the other
_ADVICE_UNREACHABLE = "start `understudy doctor --listen` there first; then look at firewalls and at the address"
_ADVICE_BY_KIND = {
    "unauthorised": "give both sides the same --token-file",
    "slow": "no state can go over such a way: look at the link and at the interface",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long and how much one direction is measured."""

    first_round: int = 256 << 10
    largest_round: int = LARGEST_ROUND
    most: int = 2 << 30  # bytes
    telling: float = 0.25  # seconds; an amount that took so long tells the speed
    enough: float = 0.7  # seconds after which no further amount is tried
    longest: float = 3.0  # seconds after which a direction is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Bytes per second, seconds. `offset`: how far the other wall clock is ahead; `uncertain`: by how much we err."""

    peer: str
    route: route.Route
    round_trip: float
    there: float
    back: float
    offset: float
    uncertain: float
    versions: Mapping[str, str]

    @property
    def bandwidth(self) -> float:
        return min(self.there, self.back)


def examine(host: str, port: int, token: str, effort: Effort | None = None) -> Way | Finding:
    """The way, or why there is none."""
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=GREETING_TIMEOUT) as connection:
            return _measure(connection, peer, token, effort or Effort())
    except TimeoutError:
        return _unreachable(f"{peer} does not answer in time", _ADVICE_UNREACHABLE)
    except OSError as error:
        return _unreachable(f"{peer} cannot be reached: {error.strerror or error}", _ADVICE_UNREACHABLE)
    except WireError as error:
        return _unreachable(f"{peer}: {error}", _ADVICE_BY_KIND.get(error.kind, _ADVICE_UNREACHABLE))


def _unreachable(what: str, advice: str) -> Finding:
    return Finding(what, good=False, wrong=True, advice=advice)


def _measure(connection: socket.socket, peer: str, token: str, effort: Effort) -> Way:
    line = PeerConnection(connection, GREETING_TIMEOUT)
    introduce(line, token)
    line.extend(EXAMINATION_TIMEOUT)
    told = ask_versions(line)
    way_out = route.route_of(connection)
    round_trip, offset, uncertain = _ping(line)
    there = _speed(line, send_round, round_trip, effort)
    back = _speed(line, fetch_round, round_trip, effort)
    say_goodbye(line)
    return Way(
        peer=peer,
        route=way_out,
        round_trip=round_trip,
        there=there,
        back=back,
        offset=offset,
        uncertain=uncertain,
        versions=told,
    )


def _ping(line: PeerConnection) -> tuple[float, float, float]:
    """The median round trip, and the offset of the wall clocks by the quickest one."""
    trips: list[tuple[float, float]] = []
    for _ in range(_PINGS):
        wall, began = time.time(), time.monotonic()
        theirs = ask_time(line)
        took = time.monotonic() - began
        trips.append((took, theirs - (wall + took / 2)))
    quickest, offset = min(trips)
    return statistics.median(took for took, _ in trips), offset, quickest / 2


def _speed(line: PeerConnection, go: Callable[[PeerConnection, int], None], round_trip: float, effort: Effort) -> float:
    """Bytes per second of the largest amounts that were tried."""
    line.extend(effort.longest)
    began, count, spent = time.monotonic(), effort.first_round, 0
    tried: list[tuple[int, float]] = []
    while True:
        start = time.monotonic()
        try:
            go(line, count)
        except TimeoutError:
            raise WireError(f"{amount(count)} did not get through within {span(effort.longest)}", kind="slow") from None
        now = time.monotonic()
        took = max(1e-9, now - start - min(round_trip, (now - start) / 2))
        tried = [(size, seconds) for size, seconds in tried if size == count] + [(count, took)]
        spent += count
        if now - start >= effort.telling or now - began >= effort.enough or spent + count > effort.most:
            return sum(size for size, _ in tried) / sum(seconds for _, seconds in tried)
        count = min(effort.largest_round, 4 * count)


# -- what to say of it ------------------------------------------------------------------------------------------------


def findings(way: Way) -> Iterator[Finding]:
    yield Finding(f"the way to {way.peer} begins at {way.route}", good=True)
    yield route.gloo(way.route, os.environ, route.interfaces_here(), route.address_of_own_name())
    yield from judge(way)
    yield clocks.wall_offset(way.offset, way.uncertain, way.peer)
    yield versions.compared(way.peer, way.versions, versions.versions_here())


def judge(way: Way) -> Iterator[Finding]:
    yield Finding(
        f"round trip {span(way.round_trip)} (median of {_PINGS})",
        good=way.round_trip <= _FAR,
        advice="far apart: every collective of every step waits so long. Ranks and spares belong into one network",
    )
    slower, faster = sorted((way.there, way.back))
    yield Finding(
        f"bandwidth {rate(way.there)} there, {rate(way.back)} back (one connection)",
        good=faster <= _LOPSIDED * slower,
        advice=f"one direction is {faster / slower:.0f} times slower: look at the link (cable, duplex, traffic)",
    )
