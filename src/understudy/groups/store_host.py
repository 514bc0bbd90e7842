"""The process that hosts the c10d store: `python -m understudy.groups.store_host FD`.

It lives beside the agent and never in a worker, so that no rank is special (a store on rank 0 dies with rank 0).
The agent binds the port and hands the listening socket over, so workers know the address before this process is ready.
"""

import os
import socket
import sys
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore


def main(listening_descriptor: int) -> None:
    listening = socket.socket(fileno=os.dup(listening_descriptor))
    host, port = listening.getsockname()[:2]
    listening.close()
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        master_listen_fd=listening_descriptor,
    )
    while os.read(sys.stdin.fileno(), 4096):
        pass  # the agent keeps our input open for as long as it wants us
    del store


if __name__ == "__main__":
    main(int(sys.argv[1]))
