"""What two runs of a loop have left in their folders, compared: lines, evaluations, models, checkpoints."""

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from understudy_testkit.faults.assertions import NotProven


@dataclass(frozen=True, slots=True)
class Lines:
    """Of the steps: how many there should be, how many are missing, and how many are there more than once."""

    expected: int = 0
    lost: int = 0
    repeated: int = 0

    def __add__(self, other: "Lines") -> "Lines":
        return Lines(self.expected + other.expected, self.lost + other.lost, self.repeated + other.repeated)


def compare_lines(quiet: Path, hurt: Path, what: str, ranks: int) -> Lines:
    """Of the files WHAT-RANK.txt, by the number at the begin of each line. One whose values are others is refused."""
    total = Lines()
    for rank in range(ranks):
        expected, found = (_lines_in(folder / f"{what}-{rank}.txt") for folder in (quiet, hurt))
        for number, values in found.items():
            if set(values) != set(expected.get(number, ())):
                raise NotProven(f"{what} of rank {rank} at {number}: {values}, not {expected.get(number)}")
        repeated = sum(len(values) - 1 for values in found.values())
        total += Lines(len(expected), len(expected.keys() - found.keys()), repeated)
    return total


def _lines_in(path: Path) -> dict[int, list[str]]:
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        number, _, values = line.partition(" ")
        found[int(number)].append(values)
    return found


def require_same_models(quiet: Path, hurt: Path) -> int:
    """How many there are."""
    names, found = _models_in(quiet), _models_in(hurt)
    if names != found:
        raise NotProven(f"models that only one of the runs has left: {', '.join(sorted(names ^ found))}")
    for name in sorted(names):
        if not _equal(_content(quiet / name), _content(hurt / name)):
            raise NotProven(f"{name} is another one than without faults")
    return len(names)


def _models_in(folder: Path) -> set[str]:
    """Files of `torch.save`, and folders of DCP."""
    return {path.name for path in folder.iterdir() if path.suffix == ".pt" or (path / ".metadata").exists()}


def _content(path: Path) -> Any:
    if path.is_file():
        return torch.load(path, weights_only=True)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        dcp_to_torch_save(path, file.name)
        return torch.load(file.name, weights_only=True)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
