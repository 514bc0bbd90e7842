"""Connections that begin something and never end it: a TLS handshake, the head of a request, its body."""

import contextlib
import socket
from collections.abc import Iterator, Sequence

_BEGINNING_OF_TLS = b"\x16\x03\x01\x02\x00"
_ADDRESSES = 200  # of this host, from which they come


class Idlers:
    """They are open until the end. Every other one has said the beginning of a handshake, the others nothing."""

    def __init__(self) -> None:
        self.held: list[socket.socket] = []

    def connect(self, ports: Sequence[int], number: int) -> None:
        """One more, to each of the ports in turn and from an address that its number gives."""
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.0.{2 + number % _ADDRESSES}", 0))
        with contextlib.suppress(OSError):  # also that it is not there at once
            one.connect(("127.0.0.1", ports[number % len(ports)]))
        self.held.append(one)

    def speak(self) -> None:
        for number, one in enumerate(self.held):
            if number // 2 % 2 == 0:
                with contextlib.suppress(OSError):
                    one.send(_BEGINNING_OF_TLS)


@contextlib.contextmanager
def idlers() -> Iterator[Idlers]:
    some = Idlers()
    try:
        yield some
    finally:
        for one in some.held:
            one.close()
