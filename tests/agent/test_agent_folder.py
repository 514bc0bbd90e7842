import socket
from pathlib import Path

from understudy.agent.folder import SOCKET, new_folder


def test_the_folder_is_private_and_the_leavings_of_killed_agents_are_swept_away(tmp_path: Path) -> None:
    dead, alive, young = (tmp_path / f"understudy-{name}" for name in ("dead", "alive", "young"))
    listeners = []
    for folder in (dead, alive, young):
        folder.mkdir()
    for folder in (dead, alive):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / SOCKET))
        listener.listen()
        listeners.append(listener)
    listeners[0].close()  # its agent is gone; the socket's name stays
    mine = new_folder(tmp_path)
    assert mine.stat().st_mode & 0o777 == 0o700
    assert sorted(tmp_path.iterdir()) == sorted([alive, young, mine])
    listeners[1].close()
