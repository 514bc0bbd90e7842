"""A loader yields the items of a window again, and goes on where a rank was."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from understudy.training.rewinding import Rewinding
from understudy.training.rng import derived_seed, seed_all


def seed(epoch: int, place: int | None) -> None:
    seed_all(derived_seed(5, epoch, 0 if place is None else 1 + place))


def loader() -> Rewinding:
    return Rewinding(DataLoader(range(6), shuffle=True, batch_size=1), seed)  # type: ignore[arg-type]


def items(found: Any) -> list[int]:
    return [int(item) for item in found]


def test_it_is_the_loader_and_epochs_differ() -> None:
    rewinding = loader()
    first, second = items(rewinding), items(rewinding)
    assert sorted(first) == sorted(second) == list(range(6)) and first != second
    assert len(rewinding) == 6 and rewinding.batch_size == 1
    again = loader()
    assert (items(again), items(again)) == (first, second), "the order follows from the seed"


def test_items_since_the_last_commit_come_again() -> None:
    expected = items(loader())
    rewinding = loader()
    found = iter(rewinding)
    assert [int(next(found)) for _ in range(2)] == expected[:2]
    assert rewinding.is_ahead
    rewinding.committed()
    assert not rewinding.is_ahead
    taken = rewinding.state_dict()
    assert [int(next(found)) for _ in range(3)] == expected[2:5]
    rewinding.load_state_dict(taken)
    drawn = []
    for place in range(2, 6):
        assert int(next(found)) == expected[place]
        drawn.append(torch.rand(1).item())
    rewinding.load_state_dict(taken)
    for place in range(2, 6):
        assert int(next(found)) == expected[place] and torch.rand(1).item() == drawn[place - 2]
    assert list(found) == []


def test_a_member_that_joins_begins_behind_the_last_commit() -> None:
    expected = items(both := loader()), items(both)
    rewinding = loader()
    items(rewinding)
    rewinding.committed()
    found = iter(rewinding)
    for _ in range(2):
        next(found)
    rewinding.committed()
    next(found)  # of the window that is open
    taken = rewinding.state_dict()

    joiner = loader()
    next(iter(joiner))  # its rehearsal
    joiner.forget()
    joiner.load_state_dict(taken)
    joiner.go_to_last_commit()
    found = iter(joiner)
    assert int(next(found)) == expected[1][2]
    joiner.load_state_dict(taken)  # at its first part
    assert items(found) == expected[1][3:] and items(joiner) != expected[1]


def test_what_was_read_within_a_part_is_passed_by() -> None:
    expected = items(loader())
    rewinding, joiner = loader(), loader()
    found = iter(rewinding)
    begun = rewinding.state_dict()
    for _ in range(3):
        next(found)
    joiner.load_state_dict(begun)
    later = iter(joiner)
    joiner.load_state_dict(rewinding.state_dict())
    assert items(later) == expected[3:]


def test_a_part_may_read_across_the_end_of_an_epoch() -> None:
    def endless(loader: Rewinding) -> Any:
        while True:
            yield from loader

    expected = items(both := loader()) + items(both)
    rewinding = loader()
    source = endless(rewinding)
    for _ in range(5):
        next(source)
    rewinding.committed()
    taken = rewinding.state_dict()
    assert [int(next(source)) for _ in range(4)] == expected[5:9]
    rewinding.load_state_dict(taken)
    assert [int(next(source)) for _ in range(5)] == expected[5:10]

    joiner = loader()
    joiner.load_state_dict(rewinding.state_dict())  # nothing was begun: all is read in parts
    later = endless(joiner)
    assert [int(next(later)) for _ in range(2)] == expected[10:12]


def test_a_loader_that_can_skip_is_not_read_up_to_a_place() -> None:
    begun: list[tuple[int, int]] = []

    def begin(epoch: int, place: int) -> list[int]:
        begun.append((epoch, place))
        return list(range(10 * epoch + place, 10 * epoch + 4))

    rewinding = Rewinding([], seed, begin)
    assert rewinding.begins_at == (0, 0) and items(rewinding) == [0, 1, 2, 3]
    found = iter(rewinding)
    assert [next(found) for _ in range(2)] == [10, 11]
    rewinding.committed()
    taken = rewinding.state_dict()

    joiner = Rewinding([], seed, begin)
    joiner.load_state_dict(taken)
    joiner.go_to_last_commit()
    assert joiner.begins_at == (1, 2)
    assert items(joiner) == [12, 13] and joiner.begins_at == (2, 0)
    assert begun == [(0, 0), (1, 0), (1, 2)]
