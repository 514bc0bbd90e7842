import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from understudy.groups.connections import Connections, as_bytes, open_sockets


@contextmanager
def tcp_pair(told: Connections | None = None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """`told`: where it listens goes through the store, as a group's does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if told is not None:
            told.hear(b"..." + as_bytes(listener.getsockname()) + bytes(120))
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    with here, there:
        yield here, there


def blocked_in_recv(connection: socket.socket) -> tuple[threading.Thread, list[bytes | OSError]]:
    """A thread that waits for data; the list gets what came of it."""
    came: list[bytes | OSError] = []

    def wait() -> None:
        try:
            came.append(connection.recv(1))
        except OSError as error:
            came.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    return thread, came


def still_works(pair: tuple[socket.socket, socket.socket]) -> bool:
    pair[0].sendall(b"x")
    return pair[1].recv(1) == b"x"


def test_a_blocked_call_on_a_groups_connection_fails_at_once_and_others_are_left_alone() -> None:
    connections = Connections()
    with ExitStack() as stack:
        before = stack.enter_context(tcp_pair())
        with connections.forming():
            ours = stack.enter_context(tcp_pair(connections))
            unix = socket.socketpair()
            stack.enter_context(unix[0])
            stack.enter_context(unix[1])
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        after = stack.enter_context(tcp_pair())
        thread, came = blocked_in_recv(ours[0])
        assert connections.break_all() == 2
        thread.join(2)
        assert came and (came[0] == b"" or isinstance(came[0], OSError))
        assert still_works(before) and still_works(after) and still_works(unix)
        stack.enter_context(socket.create_connection(listener.getsockname()))


def test_connections_that_are_just_being_made_can_be_broken() -> None:
    connections = Connections()
    with ExitStack() as stack, connections.forming():
        pair = stack.enter_context(tcp_pair(connections))
        thread, came = blocked_in_recv(pair[0])
        assert connections.break_all() == 2
        thread.join(2)
        assert came


def test_with_fresh_the_older_connections_are_forgotten() -> None:
    connections = Connections()
    with ExitStack() as stack:
        with connections.forming():
            old = stack.enter_context(tcp_pair(connections))
        with connections.forming():
            added = stack.enter_context(tcp_pair(connections))
        assert connections.break_all() == 4
        with connections.forming(fresh=True):
            new = stack.enter_context(tcp_pair(connections))
        assert connections.break_all() == 2
        assert {pair[0].recv(1) for pair in (old, added, new)} == {b""}


def test_a_descriptor_that_was_closed_and_used_again_is_left_alone() -> None:
    connections = Connections()
    with ExitStack() as stack:
        with connections.forming():
            ours = stack.enter_context(tcp_pair(connections))
        numbers = {ours[0].fileno(), ours[1].fileno()}
        ours[0].close()
        ours[1].close()
        other = stack.enter_context(tcp_pair())
        if not numbers & {other[0].fileno(), other[1].fileno()}:
            pytest.skip("the system did not use the descriptor again")
        assert connections.break_all() == 0
        assert still_works(other)


def test_a_peer_that_has_gone_is_seen() -> None:
    connections = Connections()
    assert not connections.broken()
    with tcp_pair() as before:
        with connections.forming():
            pass
        before[1].close()
        assert not connections.broken(), "this one is not ours"
    with connections.forming():
        here, there = (pair := tcp_pair(connections)).__enter__()
    assert not connections.broken()
    there.sendall(b"data to read is no end")
    assert not connections.broken()
    there.close()
    assert connections.broken()
    here.close()
    assert connections.broken(), "gloo closes what has failed"
    pair.__exit__(None, None, None)


@pytest.mark.parametrize("by", ["a file", "a healthy connection"])
def test_a_peer_that_has_gone_is_seen_although_the_descriptor_was_used_again(by: str, tmp_path: Path) -> None:
    """gloo closes what has failed, and another thread opens something before anybody has looked."""
    connections = Connections()
    with ExitStack() as stack:
        with connections.forming():
            here, there = stack.enter_context(tcp_pair(connections))
        if by == "a file":
            other = stack.enter_context((tmp_path / "file").open("w")).fileno()
        else:
            other = stack.enter_context(tcp_pair())[0].fileno()
        assert not connections.broken()
        for descriptor in (here.fileno(), there.fileno()):  # both are in this process
            os.dup2(other, descriptor)
        assert connections.broken()


def test_the_end_of_a_group_that_was_destroyed_is_no_loss() -> None:
    groups = {"default", "own"}
    connections = Connections(exists=groups.__contains__)
    with ExitStack() as stack:
        with connections.forming("default"):
            default = stack.enter_context(tcp_pair(connections))
        with connections.forming("own"):
            own = stack.enter_context(tcp_pair(connections))
        groups.remove("own")
        assert not connections.broken()
        own[1].close()
        assert not connections.broken()
        own[0].close()
        assert not connections.broken()
        assert still_works(default)
        default[1].close()
        assert connections.broken()


def test_our_own_breaking_is_seen_as_broken() -> None:
    connections = Connections()
    with ExitStack() as stack:
        with connections.forming():
            stack.enter_context(tcp_pair(connections))
        connections.break_all()
        assert connections.broken()


def test_all_sockets_of_the_process_are_listed() -> None:
    with tcp_pair() as (here, there), open(os.devnull) as file:
        found = open_sockets()
        assert {here.fileno(), there.fileno()} <= set(found)
        assert file.fileno() not in found


def test_connections_of_the_script_that_are_opened_meanwhile_are_its_own() -> None:
    connections = Connections()
    with ExitStack() as stack:
        with connections.forming():
            ours, others = stack.enter_context(tcp_pair(connections)), stack.enter_context(tcp_pair())
            name_server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            name_server.connect(("127.0.0.1", 53))
        others[0].close()
        assert not connections.broken(), "a download has ended"
        assert connections.break_all() == 2
        assert ours[0].recv(1) == b""


def test_an_address_is_written_as_the_kernel_does() -> None:
    assert as_bytes(("127.0.0.1", 0x1234)) == b"\x02\x00\x12\x34\x7f\x00\x00\x01"
    assert as_bytes(("::1", 0x1234, 0, 0)) == b"\x0a\x00\x12\x34" + bytes(4) + bytes(15) + b"\x01"
