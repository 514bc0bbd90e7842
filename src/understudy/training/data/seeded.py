"""Random transforms in worker processes that a replacement can repeat: `DataLoader(understudy.Seeded(dataset), ...)`.

A worker process draws from streams of its own, which go on from sample to sample, and are in no loader's state: a
replacement, whose workers have made other samples before, draws other numbers. Seeded for each sample from the seed of
the epoch and from what the sample is asked for by, it does not matter which worker makes it, or when.

Loaders that were given to `job.protect(data=)` do that for whole batches by themselves (`task_loader`). Without workers
samples are made in the process of the rank, whose streams are seeded already.
"""

import zlib
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from understudy.training.rng import derived_seed, seed_all


class Seeded(Dataset[Any]):
    """`dataset`, a map-style one, as it is. What it draws from torch, `random` and NumPy in a worker follows from (the
    epoch, the index). The loader must start its workers in each epoch: leave `persistent_workers` out."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        worker = get_worker_info()
        if worker is not None:
            place = index if isinstance(index, int) else zlib.crc32(repr(index).encode())
            seed_all(derived_seed(worker.seed - worker.id, place, 0))  # all workers of an epoch share that
        return self._dataset[index]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [self[index] for index in indices]
