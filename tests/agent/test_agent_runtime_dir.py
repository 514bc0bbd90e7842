import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from understudy.agent.runtime_dir import SOCKET, runtime_dir

_OWNER = """
import socket, sys, time
from pathlib import Path
from understudy.agent.runtime_dir import SOCKET, runtime_dir
with runtime_dir(Path(sys.argv[1])) as mine:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(mine / SOCKET))
    print(mine, flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def _owner(parent: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A process that owns a folder. Its socket has a name and does not listen yet: connections to it are refused."""
    with subprocess.Popen([sys.executable, "-c", _OWNER, parent], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Path(process.stdout.readline().strip()), process
        finally:
            process.kill()


def test_the_folder_is_private_and_goes_with_its_owner(tmp_path: Path) -> None:
    with runtime_dir(tmp_path) as mine:
        assert mine.stat().st_mode & 0o777 == 0o700
    assert not mine.exists()


def test_only_the_leavings_of_killed_agents_are_swept_away(tmp_path: Path) -> None:
    young, foreign = tmp_path / "understudy-young", tmp_path / "else"
    for folder in (young, foreign):
        folder.mkdir()
    with _owner(tmp_path) as (alive, _), _owner(tmp_path) as (dead, process):
        process.kill()
        process.wait()
        assert (dead / SOCKET).is_socket()
        with runtime_dir(tmp_path) as mine:
            assert sorted(tmp_path.iterdir()) == sorted([alive, young, foreign, mine])


def test_a_folder_is_its_owners_before_anybody_can_connect(tmp_path: Path) -> None:
    """Between a socket's bind and its listen a connection is refused, as if its owner were dead."""
    with runtime_dir(tmp_path) as first, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(first / SOCKET))
        with runtime_dir(tmp_path) as second:
            assert first.exists() and second.exists()
