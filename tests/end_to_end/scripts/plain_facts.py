"""Trains a little and writes, per member, what a script can see of how it was started."""

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
if "sets-threads" in sys.argv:
    os.environ["OMP_NUM_THREADS"] = "2"

import torch  # noqa: E402

import understudy  # noqa: E402

FACTS = {
    "argv": sys.argv,
    "path": sys.path[0],
    "main": __name__,
    "main_file": sys.modules["__main__"].__file__,
    "session": os.getsid(0) == os.getpid(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "threads": torch.get_num_threads(),
    "omp": os.environ.get("OMP_NUM_THREADS"),
}
SEED = torch.initial_seed()


class Pickled:
    """Of `__main__`, like a data set that a loader sends to its helpers."""


def main() -> None:
    job = understudy.join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.protect(model=model, optimizer=optimizer)
    for step in job.steps(6):
        if step.number == 3 and not step.rehearsing:
            member = os.environ["UNDERSTUDY_MEMBER"]
            name, value = Pickled.__module__, FACTS | {"parent": os.getppid()}
            (folder / f"{member}.seed").write_text(str(SEED))
            (folder / f"{member}.json").write_text(json.dumps(value | {"pickled": name}))
            if job.rank == 1 and not (folder / "died").exists():
                (folder / "died").touch()
                os.kill(os.getpid(), 9)
        with step:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if job.rank == 1 and step.number == 4 and not step.rehearsing:
            if "fails" in sys.argv:
                raise RuntimeError("after the swap")
            if "leaves" in sys.argv:
                sys.exit(3)
        if "stops-early" in sys.argv and step.committed and step.number == 4:
            break


if __name__ == "__main__":
    main()
