"""The real fork server, with an import that opens a device: the file that STAND_IN names. It loads no engine.

WHEN: "loading", or "later", when the fork server has found itself fit already.
"""

import os
import re
import sys
from functools import partial
from typing import IO

from understudy.training import fork_server

path = os.environ["STAND_IN"]
opened: list[IO[str]] = []


def open_device() -> None:
    opened.append(open(path))  # noqa: SIM115 (it stays open)


if os.environ["WHEN"] == "loading":
    fork_server.preload = open_device
else:
    fork_server.preload = lambda: None
    fork_server.unfit = open_device
fork_server.holds_device = partial(fork_server.holds_device, re.compile(re.escape(path)))
fork_server.main(int(sys.argv[1]), sys.argv[2:])
