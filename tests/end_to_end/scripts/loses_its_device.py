"""Trains, and rank 1 loses its device after three steps: loses_its_device.py FOLDER. Its replacement trains on."""

import os
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import understudy
from understudy.foundation.exits import DEVICE_LOST

folder = Path(sys.argv[1])
job = understudy.join()
member = os.environ["UNDERSTUDY_MEMBER"]
(folder / f"{member}.view").write_text(os.environ.get("UNDERSTUDY_DEVICES", "as inherited"))
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer)
for number, step in enumerate(job.steps(8)):
    with step:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if member == "m-1" and number == 3:
        with (folder / "kmsg").open("a") as log:
            log.write("4,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
        os._exit(DEVICE_LOST)
