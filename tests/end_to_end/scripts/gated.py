"""The training script with gates: before each of the given steps every rank waits until the test lets it through.

`gated.py FOLDER STEP,STEP... <the training script's arguments>`. A rank says `at-STEP-RANK` and waits for `go-STEP`.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from understudy.training.job import Job
from understudy.training.steps import Step
from understudy_testkit.faults import train_script

folder, gates = Path(sys.argv[1]), {int(step) for step in sys.argv[2].split(",")}
del sys.argv[1:3]
steps_of = Job.steps


def gated_steps(job: Job, total: int) -> Iterator[Step]:
    for step in steps_of(job, total):
        if step.number in gates and not step.rehearsing:
            (folder / f"at-{step.number}-{job.rank}").touch()
            while not (folder / f"go-{step.number}").exists():
                time.sleep(0.02)
        yield step


Job.steps = gated_steps  # type: ignore[method-assign, assignment]
train_script.main()
