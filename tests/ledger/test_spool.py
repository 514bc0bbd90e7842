"""Records on their way: a worker writes them into shared memory, its agent takes them out."""

import os
from pathlib import Path

import pytest
from tests.ledger.made_up import committed

from understudy.ledger import spool as spool_module
from understudy.ledger.spool import Spool, SpoolWriter
from understudy.ledger.writing import line_of


def lines(*steps: int) -> bytes:
    return b"".join(line_of(committed(step, 0)) for step in steps)


def everything(spool: Spool, writer_is_gone: bool = True) -> bytes:
    found = b""
    while chunk := spool.peek(writer_is_gone):
        found += chunk
        spool.taken(len(chunk))
    return found


def writer(folder: Path, part: int = 1 << 20) -> tuple[SpoolWriter, list[str]]:
    said: list[str] = []
    return SpoolWriter(str(folder), "m-0", said.append, part), said


def test_a_record_is_there_as_soon_as_it_was_appended_and_with_one_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, said = writer(tmp_path)
    own.append(committed(0, 0))
    calls: list[bytes] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        calls.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    own.append(committed(1, 0))
    assert len(calls) == 1 and said == []
    assert everything(Spool(tmp_path, "m-0"), writer_is_gone=False) == lines(0, 1)


def test_a_spool_that_was_not_begun_is_empty(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "m-0")
    assert spool.peek() == b"" and spool.peek(writer_is_gone=True) == b"" and not spool.lacks_records


def test_what_was_not_taken_comes_again(tmp_path: Path) -> None:
    own, _ = writer(tmp_path)
    spool = Spool(tmp_path, "m-0")
    own.append(committed(0, 0))
    assert spool.peek() == lines(0)
    own.append(committed(1, 0))
    assert spool.peek() == lines(0, 1)
    spool.taken(len(lines(0)))
    assert spool.peek() == lines(1)


def test_memory_is_given_back_file_by_file(tmp_path: Path) -> None:
    own, _ = writer(tmp_path, part=500)
    for step in range(40):
        own.append(committed(step, 0))
    assert len(list(tmp_path.iterdir())) > 5
    spool = Spool(tmp_path, "m-0")
    assert everything(spool, writer_is_gone=False) == lines(*range(40))
    assert len(list(tmp_path.iterdir())) == 1, "the one that is being written"
    own.append(committed(40, 0))
    assert everything(spool) == lines(40)
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_of_one_member_is_not_that_of_another(tmp_path: Path) -> None:
    for member in ("m-1", "m-10"):
        SpoolWriter(str(tmp_path), member, print).append(committed(0, 0, member=member))
    spool = Spool(tmp_path, "m-1")
    assert everything(spool) == line_of(committed(0, 0, member="m-1"))
    spool.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["steps-m-10-0"]


def test_an_unfinished_line_waits_for_its_end_or_for_the_death_of_its_writer(tmp_path: Path) -> None:
    (tmp_path / "steps-m-0-0").write_bytes(lines(0) + b'{"step": 1')
    spool = Spool(tmp_path, "m-0")
    assert everything(spool, writer_is_gone=False) == lines(0)
    assert everything(spool) == b'{"step": 1'


class FullMemory:
    """Shared memory with so much room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room, self._write = room, os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = self._write(descriptor, data[: self.room])
        self.room -= taken
        return taken


def test_without_memory_training_goes_on_and_the_gap_is_said_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, said = writer(tmp_path)
    memory = FullMemory(monkeypatch, room=len(lines(0)) + 10)
    for step in range(4):
        own.append(committed(step, 0))
    assert len(said) == 1 and "steps of m-0 are missing from the ledger" in said[0] and "Training goes on" in said[0]
    spool = Spool(tmp_path, "m-0")
    assert spool.lacks_records
    memory.room = 10_000
    own.append(committed(4, 0))
    own.append(committed(5, 0))
    found = everything(spool).split(b"\n")
    assert found[0] + b"\n" == lines(0) and found[1] == lines(1)[:10]
    assert b'"type":"gap"' in found[2] and b'"lost":3' in found[2] and b"No space left on device" in found[2]
    assert b"\n".join(found[3:]) == lines(4, 5) and len(said) == 1


def test_a_disk_that_takes_nothing_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MOST_PARTS", 3)
    own, said = writer(tmp_path, part=500)
    for step in range(100):
        own.append(committed(step, 0))
    held = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert held < 4 * 500 + len(lines(0)) and len(said) == 1 and "--run-dir" in said[0]
    spool = Spool(tmp_path, "m-0")
    everything(spool, writer_is_gone=False)
    own.append(committed(100, 0))
    found = everything(spool)
    assert b'"type":"gap"' in found.split(b"\n")[0] and found.endswith(lines(100))
