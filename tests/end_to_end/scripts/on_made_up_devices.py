"""`understudy run` on a host that believes to have three devices: on_made_up_devices.py FOLDER SCRIPT [ARGUMENTS].

FOLDER/kmsg stands in for the kernel's log. Ranks train on the CPU: which device each of them has is all that is tried.
"""

import sys
from functools import partial
from pathlib import Path

from understudy.agent import inventory
from understudy.agent.supervisor import Supervisor
from understudy.cli import run
from understudy.cli.main import main
from understudy.wire.inventory import Device, HostInventory

folder, *script = sys.argv[1:]
log = Path(folder) / "kmsg"
log.touch()
found = HostInventory(devices=tuple(Device(slot=slot, pci_bus_id=f"0000:{slot}b:00.0") for slot in range(3)))
setattr(inventory, "read", lambda _environment: found)  # noqa: B010
setattr(run, "Supervisor", partial(Supervisor, kernel_log=str(log)))  # noqa: B010
flags = ("--nproc-per-node", "2", "--spares", "2", "--no-progress", "--run-dir", f"{folder}/run")
sys.exit(main(["run", *flags, *script]))
