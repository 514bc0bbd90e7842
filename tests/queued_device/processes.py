"""Real ranks in processes of their own, for tests: each is a script that gets RANK SIZE PORT FOLDER, and more."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

ROOT = Path(__file__).resolve().parents[2]


class Processes:
    def __init__(self, script: Path, size: int, folder: Path, *more: str) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder = folder
        self._told = [(folder / f"rank-{rank}.txt").open("w+") for rank in range(size)]
        found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": found, "TORCH_FR_BUFFER_SIZE": "0", "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(size), str(self.store.port), str(folder), *more],
                stdout=told,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            for rank, told in enumerate(self._told)
        ]

    def told_by(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.txt").read_text()

    def wait(self, rank: int, seconds: float) -> int:
        return self.ranks[rank].wait(seconds)

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        for told in self._told:
            told.close()


@contextmanager
def processes(script: Path, size: int, folder: Path, *more: str) -> Iterator[Processes]:
    started = Processes(script, size, folder, *more)
    try:
        yield started
    finally:
        started.end()
