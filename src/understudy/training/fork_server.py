"""The process from which workers are forked: `python -u -m understudy.training.fork_server FD COMMAND...`.

It imports what every worker imports and then waits. A worker that is forked here has skipped those seconds of imports,
which on a small host it would take from the ranks. It is otherwise as if COMMAND had been started: a session, streams
and environment of its own, the agent as its parent, the script as `__main__`.

The fork server runs nothing but imports: no group, no device, no thread, no line of the script. If it cannot be like
this (an import has started a thread or touched a device) the agent is told, and starts workers the usual way.
"""

import contextlib
import ctypes
import importlib
import os
import re
import runpy
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from understudy.devices import importing, nodes
from understudy.foundation.parenthood import die_with
from understudy.wire import fork_messages

_PRELOADED = ("understudy.training.joining", "understudy.training.warmup")
_ARG_START, _ARG_END = 45, 46  # fields of /proc/self/stat, counted after the name
_ADOPTION_LIMIT = 10.0  # seconds that the kernel may take to make the agent our parent
_READ_WHEN_LOADED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH_")
"""Variables that the engine's libraries read while they are loaded: too early for a script that sets them itself."""
_SET_BY_TORCH = {"TORCHINDUCTOR_CACHE_DIR"}
"""torch sets it when something is to be compiled, which may be above `join`, and reads it each time."""

_forked_with: dict[str, str] | None = None
_command: tuple[str, ...] = ()


# -- in the fork server ------------------------------------------------------------------------------------------------


def main(descriptor: int, command: Sequence[str]) -> None:
    """`command` is (python, -u, script, ...) or (python, -u, -m, module, ...)."""
    global _command
    _command = tuple(command)
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)
    show_as(("understudy", "fork-server"))
    _search_modules_as_the_script_would()
    preload()
    line.send(fork_messages.encode(fork_messages.Ready(unfit=unfit())))
    wanted, streams = _wait_for_requests(line)
    _become_a_worker(wanted, streams, line)
    _run_script()


def preload() -> None:
    os.environ.update(importing.VARIABLES)
    for module in _PRELOADED:
        importlib.import_module(module)
    importlib.import_module("understudy.training.warmup").load_what_is_heavy()
    for name in importing.VARIABLES:
        del os.environ[name]


def unfit() -> str | None:
    """Why this process must not be forked. Its imports are done."""
    if (held := holds_device()) is not None:
        return held
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"an import has started {threads - 1} threads, which a forked process would not have"
    from understudy.devices import choosing

    probe = os.fork()
    if probe == 0:
        os._exit(int(choosing.spoilt_by_fork()))
    if os.waitstatus_to_exitcode(os.waitpid(probe, 0)[1]) != 0:
        return "an import has touched a device, which a forked process could not use"
    return None


def holds_device(pattern: re.Pattern[str] = nodes.OF_DEVICES) -> str | None:
    """Why not, by what is open here: a forked process must not go on with what its parent has begun on a device."""
    held = nodes.held(pattern)
    return f"an import has opened {', '.join(held)}, so a forked process could not use its device" if held else None


def _wait_for_requests(line: socket.socket) -> tuple[fork_messages.Fork, list[int]]:
    """Returns in each worker; the fork server itself stays inside until the agent has gone."""
    while True:
        data, streams, _, _ = socket.recv_fds(line, fork_messages.LIMIT, 2)
        if not data:
            os._exit(0)
        if (held := holds_device()) is not None:  # whatever has opened it, and whenever
            line.send(fork_messages.encode(fork_messages.Ready(unfit=held)))
        elif _fork_an_orphan():
            return fork_messages.decode_from_agent(data), streams
        for stream in streams:
            os.close(stream)


def _fork_an_orphan() -> bool:
    """True in the new process. The process between it and us ends at once, so that the agent becomes its parent."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    if os.fork():
        os._exit(0)
    return True


# -- in the worker -----------------------------------------------------------------------------------------------------


def _become_a_worker(wanted: fork_messages.Fork, streams: Sequence[int], line: socket.socket) -> None:
    global _forked_with
    deadline = time.monotonic() + _ADOPTION_LIMIT
    while os.getppid() != wanted.agent and time.monotonic() < deadline:
        time.sleep(0.0005)
    die_with(wanted.agent)
    os.setsid()
    show_as(_command)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wanted.environment)
    _forked_with = dict(wanted.environment)
    _seed_anew()
    line.send(fork_messages.encode(fork_messages.Forked(number=wanted.number, pid=os.getpid())))
    line.close()


def _seed_anew() -> None:
    """Python's own generator does this by itself after a fork; these would be alike in all workers."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy").random.seed()
    if "torch" in sys.modules:
        importlib.import_module("torch").default_generator.seed()


def start_again_if_unlike_the_others() -> None:
    """In join(): a script that sets variables of the engine before it imports the engine must get what it asked for.

    A forked worker had the engine before the script ran. So it becomes a worker that was started the usual way.
    """
    if _forked_with is None:
        return
    changed = sorted(
        name
        for name in (_forked_with.keys() | os.environ.keys()) - _SET_BY_TORCH
        if name.startswith(_READ_WHEN_LOADED) and _forked_with.get(name) != os.environ.get(name)
    )
    if not changed:
        return
    sys.stderr.write(
        f"understudy: the script sets {', '.join(changed)} before it imports torch; this spare starts again, without "
        "the fork server. Set it in the environment of `understudy run`, or use --no-fork-server\n"
    )
    sys.stderr.flush()
    os.execve(_command[0], _command, _forked_with)


def _search_modules_as_the_script_would() -> None:
    """Python has put the current folder in front, for -m. So it is for a module; a script has its own folder there."""
    if not sys.flags.safe_path and not _is_module():
        sys.path[0] = os.path.dirname(os.path.realpath(_command[2]))


def _is_module() -> bool:
    return _command[2] == "-m"


def _run_script() -> None:
    with _only_frames_of_the_script():
        if _is_module():
            sys.argv = list(_command[3:])
            runpy.run_module(_command[3], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(_command[2:])
            runpy.run_path(_command[2], run_name="__main__")


@contextlib.contextmanager
def _only_frames_of_the_script() -> Iterator[None]:
    """A traceback begins with the script's first line, as it would without us."""
    try:
        yield
    except Exception as error:
        error = error.with_traceback(_without_ours(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    ours = (__file__, contextlib.__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def show_as(words: Sequence[str]) -> None:
    """What `ps` shows for this process: the words of its command line, in the memory where the kernel looks for them.
    As far as there is room: there are as many bytes as the command line had at the start. Changes nothing else."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, room = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
        if start and room > 1:
            text = b"\0".join(word.encode() for word in words)[: room - 1]
            ctypes.memmove(start, text.ljust(room, b"\0"), room)


if __name__ == "__main__":
    # The module that the worker's join() imports must be the one that knows how this process came to be.
    importlib.import_module("understudy.training.fork_server").main(int(sys.argv[1]), sys.argv[2:])
