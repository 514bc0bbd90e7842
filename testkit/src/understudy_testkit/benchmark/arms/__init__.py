"""The arms: one file per approach, each with the real program, started as its own documentation recommends.

An arm is one command that trains the whole scenario and survives faults as well as its approach can. Whatever it needs
besides (a lighthouse, a supervisor that restarts what has died) is started by that command and ends with it.
"""

from understudy_testkit.benchmark.arms.arm import Arm
from understudy_testkit.benchmark.arms.launchers import BARE, RESTART, UNDERSTUDY
from understudy_testkit.benchmark.arms.nvrx import NVRX
from understudy_testkit.benchmark.arms.torchft import TORCHFT, TORCHFT_SPARES, TORCHFT_TUNED

_IN_ORDER = (BARE, RESTART, TORCHFT, TORCHFT_TUNED, TORCHFT_SPARES, NVRX, UNDERSTUDY)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _IN_ORDER}
"""By name, in the order of the tables."""

__all__ = ["ARMS", "Arm"]
