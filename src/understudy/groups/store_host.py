"""The process that hosts the c10d store: `python -m understudy.groups.store_host FD [--whole]`.

It lives beside the agent and never in a worker, so that no rank is special (a store on rank 0 dies with rank 0).
The agent binds the port and hands the listening socket over, so workers know the address before this process is ready.

Only the library below torch is loaded: a store needs none of torch's Python, which takes two seconds of a core and
hundreds of megabytes. With `--whole`, as after a start that failed, torch is imported as everywhere.
"""

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType

WHOLE = "--whole"


def load_library() -> ModuleType:
    """Returns the module of torch's library that has the stores. Empty packages stand for the two whose names the
    library asks for."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.submodule_search_locations is not None
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__path__, distributed.__path__ = list(found.submodule_search_locations), []
    torch.__dict__["distributed"] = distributed
    sys.modules.update({"torch": torch, "torch.distributed": distributed})
    importlib.import_module("torch._C").__dict__["_c10d_init"]()
    return importlib.import_module("torch._C._distributed_c10d")


def main(listening_descriptor: int, options: Sequence[str]) -> None:
    library = importlib.import_module("torch._C._distributed_c10d") if WHOLE in options else load_library()
    listening = socket.socket(fileno=os.dup(listening_descriptor))
    host, port = listening.getsockname()[:2]
    listening.close()
    store = library.TCPStore(
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
    main(int(sys.argv[1]), sys.argv[2:])
