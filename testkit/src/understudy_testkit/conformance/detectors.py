"""Checks that a detector keeps the contract. For the authors of detectors, ours and others:

    from understudy_testkit.conformance import detectors

    def test_my_detector_conforms() -> None:
        detectors.check(lambda: MyDetector(limit=3))

Every rule tells the detector a made-up story, on a clock that is moved by hand. None of them waits. What a detector is
*for* must be tested elsewhere: here it is only shown to be harmless.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType

from understudy.detection.contract import Action, Detector, Evidence, Look, RankLook
from understudy.detection.progress import KEPT_STEPS, Compute, Place, Progress
from understudy.foundation.ids import MemberId, Rank
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all

_EVEN_STEPS = 2000
_STEP_SECONDS = 0.5
_GENERATIONS_OF_MEMBERS = 40
_GROWTH_ALLOWED = 1.5  # caches fill up in the first part of a story; what grows with every member goes far beyond


MakeDetector = Callable[[], Detector]
Story = Callable[[], Iterator[Look]]


def check(make: MakeDetector) -> None:
    """Every rule in turn; `make` must return a new detector each time. NotConforming at the first that is broken."""
    check_all(RULES, make)


# -- stories ----------------------------------------------------------------------------------------------------------


class _World:
    """Members that step alike, and what a look at them shows."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.now, self.step = 100.0, 0
        self.members = {MemberId(f"m-{first + rank}"): Rank(rank) for rank in range(size)}
        self.began = dict.fromkeys(self.members, 0)
        self.place = Place.IN_STEP
        self.generation = 1

    def advance(self, steps: int = 1) -> None:
        self.step += steps
        self.now += steps * _STEP_SECONDS

    def replace(self, old: MemberId, new: MemberId) -> None:
        self.members[new] = self.members.pop(old)
        self.began[new] = self.step
        del self.began[old]
        self.generation += 1

    def look(self) -> Look:
        return Look(now=self.now, ranks={member: self._one(member, rank) for member, rank in self.members.items()})

    def _one(self, member: MemberId, rank: Rank) -> RankLook:
        page = Progress(self.step + 1, self.generation, self.step, self.now, self.place, self._compute(member))
        return RankLook(member=member, rank=rank, page=page)

    def _compute(self, member: MemberId) -> Compute:
        last, steps = self.step - 1, self.step - self.began[member]
        if steps <= 0:
            return Compute()
        seconds = _STEP_SECONDS / 2
        recent = dict.fromkeys(range(max(0, last + 1 - min(steps, KEPT_STEPS)), last + 1), seconds)
        return Compute(steps * seconds, steps, last, recent)


def _no_members() -> Iterator[Look]:
    for second in range(1000):
        yield Look(now=float(second), ranks={})


def _only_spares() -> Iterator[Look]:
    for second in range(1000):
        page = Progress(1, 0, -1, 0.0, Place.PARKED)
        spare = RankLook(member=MemberId("m-9"), rank=None, page=page)
        yield Look(now=float(second), ranks={spare.member: spare})


def _even(size: int) -> Story:
    def story() -> Iterator[Look]:
        world = _World(size)
        for _ in range(_EVEN_STEPS):
            yield world.look()
            world.advance()

    return story


def _members_come_and_go() -> Iterator[Look]:
    world = _World(3)
    for number in range(_GENERATIONS_OF_MEMBERS):
        for _ in range(60):
            yield world.look()
            world.advance()
        leaver = next(iter(world.members))
        gone = _without(world.look(), leaver)
        yield gone
        world.replace(leaver, MemberId(f"m-{number + 100}"))
        world.place = Place.RECOVERING
        yield world.look()
        world.place = Place.IN_STEP


def _without(look: Look, gone: MemberId) -> Look:
    return replace(look, ranks={member: seen for member, seen in look.ranks.items() if member != gone})


def _steps_go_back() -> Iterator[Look]:
    world = _World(2)
    for turn in range(20):
        for _ in range(30):
            yield world.look()
            world.advance()
        world.step -= min(world.step, 5 + turn)
        world.generation += 1


def _same_look_again() -> Iterator[Look]:
    world = _World(2)
    for _ in range(100):
        look = world.look()
        yield from (look, look, look)
        world.advance()


def _long_gaps() -> Iterator[Look]:
    world = _World(2)
    for turn in range(60):
        yield world.look()
        world.advance(1 + 1000 * (turn % 3))


def _noise(seed: int) -> Story:
    """Pages that make no sense: of crashed writers, of members in every place, with absurd numbers."""

    def story() -> Iterator[Look]:
        chance = random.Random(seed)
        now = 0.0
        for _ in range(500):
            now += chance.choice((0.0, 0.01, 0.5, 1e4))
            names = [MemberId(f"m-{number}") for number in range(chance.randrange(6))]
            yield Look(now=now, ranks={name: _nonsense(chance, name) for name in names})

    return story


def _nonsense(chance: random.Random, member: MemberId) -> RankLook:
    numbers = (-1, 0, 1, 7, 2**40)
    seconds = (0.0, -1.0, 1e-9, 0.1, 1e9, float("inf"), float("nan"))
    last = chance.choice(numbers)
    compute = Compute(
        chance.choice(seconds),
        chance.choice((0, 1, 100)),
        last,
        {last - back: chance.choice(seconds) for back in range(chance.randrange(9))},
    )
    page = Progress(
        chance.choice((0, 1, 2**63)),
        chance.choice(numbers),
        chance.choice(numbers),
        chance.choice(seconds),
        chance.choice(list(Place)),
        compute,
    )
    rank = None if chance.random() < 0.3 else Rank(chance.randrange(4))
    return RankLook(member=member, rank=rank, page=page, numbers={"x": chance.choice(seconds)})


_STORIES: tuple[tuple[str, Story], ...] = (
    ("no members", _no_members),
    ("only spares", _only_spares),
    ("one rank", _even(1)),
    ("two even ranks", _even(2)),
    ("eight even ranks", _even(8)),
    ("members come and go", _members_come_and_go),
    ("steps go back", _steps_go_back),
    ("the same look again", _same_look_again),
    ("long gaps", _long_gaps),
    *((f"nonsense {seed}", _noise(seed)) for seed in range(5)),
)
_QUIET = ("no members", "only spares", "one rank", "two even ranks", "eight even ranks", "the same look again")


# -- rules ------------------------------------------------------------------------------------------------------------


def _told(make: MakeDetector, name: str, story: Iterable[Look]) -> list[Evidence]:
    detector = make()
    found: list[Evidence] = []
    for look in story:
        try:
            answer = detector.look(look)
        except Exception as error:
            raise NotConforming(f"in the story '{name}' it raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, tuple):
            raise NotConforming(f"in the story '{name}' it returned a {type(answer).__name__}, not a tuple")
        found += answer
    return found


def _gives_reasons(make: MakeDetector) -> None:
    for name, story in _STORIES:
        members: dict[MemberId, set[Rank | None]] = {}
        looks = list(story())
        for look in looks:
            for member, seen in look.ranks.items():
                members.setdefault(member, set()).add(seen.rank)
        for evidence in _told(make, name, looks):
            _check_evidence(name, evidence, members)


def _check_evidence(story: str, evidence: Evidence, members: dict[MemberId, set[Rank | None]]) -> None:
    shown = f"in the story '{story}' it said {evidence!r}"
    if not isinstance(evidence, Evidence) or not isinstance(evidence.action, Action):
        raise NotConforming(f"{shown}, which is no Evidence")
    if not evidence.kind.strip() or not evidence.text.strip():
        raise NotConforming(f"{shown}, without a kind or a reason")
    if evidence.action is not Action.NOTE and evidence.rank is None:
        raise NotConforming(f"{shown}: it wants to {evidence.action.value}, and names no rank")
    if evidence.member is not None and evidence.rank not in members.get(evidence.member, set()):
        raise NotConforming(f"{shown}: that member never held that rank")


def _is_quiet(make: MakeDetector) -> None:
    for name, story in _STORIES:
        if name in _QUIET and (found := _told(make, name, story())):
            raise NotConforming(f"in the story '{name}', where nothing happens, it said {found[0].text!r}")


def _is_deterministic(make: MakeDetector) -> None:
    for name, story in _STORIES:
        looks = list(story())
        if _told(make, name, looks) != _told(make, name, looks):
            raise NotConforming(f"told the story '{name}' twice, it answered differently")


def _keeps_no_state_of_the_vanished(make: MakeDetector) -> None:
    detector = make()
    looks = list(_members_come_and_go())
    sizes = []
    for number, look in enumerate(looks):
        detector.look(look)
        if number in (len(looks) // 4, len(looks) - 1):
            sizes.append(_size(detector))
    early, late = sizes
    if late > max(early * _GROWTH_ALLOWED, early + 50):
        raise NotConforming(f"what it remembers grew from {early} to {late} values while members came and went")
    detector.look(Look(now=looks[-1].now + 1e6, ranks={}))


def _size(thing: object) -> int:
    """How many values can be reached from it."""
    seen: set[int] = set()
    waiting: list[object] = [thing]
    count = 0
    while waiting:
        current = waiting.pop()
        if id(current) in seen or isinstance(current, type | ModuleType | FunctionType):
            continue
        seen.add(id(current))
        count += 1
        waiting += _parts(current)
    return count


def _parts(thing: object) -> list[object]:
    if isinstance(thing, str | bytes | int | float):
        return []
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, Iterable) and hasattr(thing, "__len__"):
        return list(thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(thing, name) for name in slots if hasattr(thing, name)] + list(
        getattr(thing, "__dict__", {}).values()
    )


RULES: tuple[Rule[Detector], ...] = (
    Rule("survives everything, and gives a reason with all that it says", _gives_reasons),
    Rule("says nothing where nothing happens", _is_quiet),
    Rule("says the same to the same story", _is_deterministic),
    Rule("forgets members that have vanished", _keeps_no_state_of_the_vanished),
)
