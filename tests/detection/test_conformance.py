"""Our detectors keep the contract, and the suite finds those that do not."""

import itertools
import random
from collections.abc import Callable

import pytest

from understudy.detection.contract import Action, Detector, Evidence, Look
from understudy.detection.device_health import DeviceHealth
from understudy.detection.straggler import StragglerDetector
from understudy_testkit.conformance import detectors
from understudy_testkit.conformance.rule import NotConforming, Rule


@pytest.mark.parametrize("rule", detectors.RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("make", [StragglerDetector, DeviceHealth])
def test_ours_conform(make: Callable[[], Detector], rule: Rule[Detector]) -> None:
    rule.check(make)


def test_all_rules_at_once() -> None:
    detectors.check(StragglerDetector)


class Silent:
    def look(self, look: Look) -> tuple[Evidence, ...]:  # noqa: ARG002
        return ()


class CriesWolf(Silent):
    def look(self, look: Look) -> tuple[Evidence, ...]:
        return (Evidence(at=look.now, kind="wolf", text="a wolf!"),)


class WithoutReason(Silent):
    def look(self, look: Look) -> tuple[Evidence, ...]:
        late = look.now > 30_000
        return (Evidence(at=look.now, kind="late", text=" "),) if late else ()


class MovesNobody(Silent):
    def look(self, look: Look) -> tuple[Evidence, ...]:
        late = look.now > 30_000
        return (Evidence(at=look.now, kind="late", text="late", action=Action.MOVE),) if late else ()


class TripsOverTheVanished(Silent):
    def __init__(self) -> None:
        self._first: list[str] = []

    def look(self, look: Look) -> tuple[Evidence, ...]:
        self._first = self._first or list(look.ranks)
        assert all(member in look.ranks for member in self._first), "where is it?"
        return ()


class NeverForgets(Silent):
    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}

    def look(self, look: Look) -> tuple[Evidence, ...]:
        for member in look.ranks:
            self._seen.setdefault(member, []).append(look.now)
        return ()


_chance = random.Random()
_calls = itertools.count()


class RollsDice(Silent):
    def look(self, look: Look) -> tuple[Evidence, ...]:
        text = f"call {next(_calls)} {_chance.random()}"
        return (Evidence(at=look.now, kind="dice", text=text),) if look.now > 30_000 else ()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (CriesWolf, "says nothing where nothing happens: .*a wolf!"),
        (WithoutReason, "without a kind or a reason"),
        (MovesNobody, "wants to move, and names no rank"),
        (TripsOverTheVanished, "raised AssertionError: where is it?"),
        (NeverForgets, "forgets members that have vanished: .*grew"),
        (RollsDice, "answered differently"),
    ],
)
def test_what_breaks_the_contract_is_found(make: Callable[[], Detector], complaint: str) -> None:
    with pytest.raises(NotConforming, match=complaint):
        detectors.check(make)


def test_a_detector_that_says_nothing_conforms() -> None:
    detectors.check(Silent)
