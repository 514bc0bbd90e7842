"""Posts of coordinators in a shared folder: the host that holds one runs a coordinator beside its agent.

    FOLDER/post-0/00000000000000000001, ...        (`files.numbered`) the newest file names the holder
    FOLDER/post-0/heartbeat-AGENT                  of that agent, while it lives

A post is taken by making its next file, so two agents never both hold it for long. Nothing depends on that being exact:
which coordinator leads is settled by the state store.
"""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from understudy.files.numbered import NumberedFiles
from understudy.files.private import write_private


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """`agent` empty: the post was given up."""

    host: str
    agent: str
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


@dataclass(slots=True)
class Post:
    """Every method does disk I/O, and raises `OSError`."""

    folder: Path
    files: NumberedFiles = field(init=False)

    def __post_init__(self) -> None:
        self.files = NumberedFiles(self.folder)

    def look(self) -> tuple[int, Holder | None]:
        """The number of the newest file, and the holder that it names."""
        number = self.files.newest()
        content = self.files.read(number) if number else None
        if content is None:
            return number, None
        try:
            holder = msgspec.json.decode(content, type=Holder)
        except msgspec.MsgspecError:
            return number, None
        return number, holder if holder.agent else None

    def heartbeat(self, holder: Holder) -> bytes:
        try:
            return self._heartbeat_of(holder.agent).read_bytes()
        except FileNotFoundError:
            return b""

    def take(self, after: int, host: str, agent: str) -> bool:
        """False: another agent was faster."""
        if not self.files.append(after + 1, msgspec.json.encode(Holder(host=host, agent=agent))):
            return False
        self.files.keep_only((), after + 1)
        return True

    def beat(self, agent: str, count: int) -> None:
        write_private(self._heartbeat_of(agent), str(count).encode())

    def give_up(self, agent: str) -> None:
        number, holder = self.look()
        if holder is not None and holder.agent == agent:
            self.files.append(number + 1, msgspec.json.encode(Holder(host=holder.host, agent="")))
        self._heartbeat_of(agent).unlink(missing_ok=True)

    def _heartbeat_of(self, agent: str) -> Path:
        return self.folder / f"heartbeat-{agent}"


def posts_in(folder: Path, count: int) -> list[Post]:
    return [Post(folder / f"post-{number}") for number in range(count)]
