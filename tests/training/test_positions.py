"""A loader that knows its position is put there in a replacement, instead of being read from its begin."""

from collections.abc import Iterator
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from understudy.errors import ProtectError
from understudy.training.positions import EVERY, PositionedLoader, Positions
from understudy.training.rewinding import Rewinding
from understudy.training.rng import derived_seed, seed_all

LENGTH = 3 * EVERY


class Stream:
    """Counts what is read of it; iterating again goes on where it is, as streams of text do."""

    def __init__(self) -> None:
        self.place = self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < LENGTH:
            self.place += 1
            self.read += 1
            yield self.place - 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def seed(epoch: int, place: int | None) -> None:
    seed_all(derived_seed(5, epoch, 0 if place is None else 1 + place))


def rewinding(loader: PositionedLoader) -> tuple[Rewinding, Positions]:
    positions = Positions(loader)
    return Rewinding(loader, seed, positions.begin, positions), positions


def read(found: Iterator[Any], loader: Rewinding, count: int) -> list[Any]:
    items = []
    for _ in range(count):
        items.append(next(found))
        loader.committed()
    return items


@pytest.mark.parametrize("used_up", [0, 1, EVERY - 1, EVERY, 2 * EVERY + 5])
def test_a_replacement_reads_little_of_what_was_used_up(used_up: int) -> None:
    lost, known = rewinding(Stream())
    found = iter(lost)
    read(found, lost, used_up)
    next(found)  # of a window that was not committed
    stream = Stream()
    list(stream)  # in its rehearsal
    stream.read = 0
    heir, its = rewinding(stream)
    its.load_state_dict(known.state_dict())
    heir.load_state_dict(lost.state_dict())
    heir.go_to_last_commit()
    assert list(iter(heir)) == list(range(used_up, LENGTH))
    assert stream.read <= LENGTH - used_up + EVERY


def test_what_was_handed_out_since_the_last_commit_comes_again_without_the_loader() -> None:
    stream = Stream()
    loader, positions = rewinding(stream)
    found = iter(loader)
    read(found, loader, EVERY + 1)
    taken, known = loader.state_dict(), positions.state_dict()
    assert [next(found), next(found)] == [EVERY + 1, EVERY + 2]
    positions.load_state_dict(known)
    loader.load_state_dict(taken)
    assert [next(found), next(found)] == [EVERY + 1, EVERY + 2] and stream.read == EVERY + 3


@pytest.mark.parametrize("workers", [0, 2])
def test_with_torchdata_in_a_later_epoch(workers: int) -> None:
    def made() -> tuple[Rewinding, Positions]:
        return rewinding(StatefulDataLoader(range(LENGTH), batch_size=1, shuffle=True, num_workers=workers))

    lost, known = made()
    first = [int(item) for item in lost]
    found = iter(lost)
    read(found, lost, EVERY + 3)
    states = known.state_dict(), lost.state_dict()
    expected = [int(item) for item in found]
    heir, its = made()
    next(iter(heir))  # in its rehearsal
    its.load_state_dict(states[0])
    heir.forget()
    heir.load_state_dict(states[1])
    heir.go_to_last_commit()
    assert [int(item) for item in heir] == expected
    assert sorted(first) == list(range(LENGTH)) and first[-len(expected) :] != expected


def test_a_state_that_cannot_be_written_down_is_named() -> None:
    class Odd(Stream):
        def state_dict(self) -> dict[str, Any]:
            return {"file": object()}

    loader, _ = rewinding(Odd())
    with pytest.raises(ProtectError, match=r"the loader's state_dict\(\)"):
        iter(loader)
