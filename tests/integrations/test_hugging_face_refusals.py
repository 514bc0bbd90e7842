"""The Trainer's adapter refuses at once what it could not lead a replacement to. The Trainer is a stand-in here."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from understudy.errors import UsageError
from understudy.integrations.hugging_face import _refuse


class Stream(IterableDataset[int]):
    """torch gives it `__getitem__`, which only raises."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Samples(Dataset[int]):
    def __getitem__(self, number: int) -> int:
        return number


def trainer_of(dataset: Any, dispatched: bool | None) -> Any:
    config = SimpleNamespace(use_seedable_sampler=True, dispatch_batches=dispatched)
    args = {"auto_find_batch_size": False, "eval_on_start": False, "deepspeed": None, "accelerator_config": config}
    return SimpleNamespace(args=SimpleNamespace(**args), train_dataset=dataset)


@pytest.mark.parametrize("dataset", [Stream(), iter(())], ids=["torch", "other"])
@pytest.mark.parametrize("dispatched", [None, True])
def test_an_iterable_dataset_that_rank_0_hands_out(dataset: Any, dispatched: bool | None) -> None:
    with pytest.raises(UsageError, match="dispatch_batches=False"):
        _refuse(trainer_of(dataset, dispatched))


def test_others_are_taken() -> None:
    _refuse(trainer_of(Stream(), False))
    _refuse(trainer_of(Samples(), None))
