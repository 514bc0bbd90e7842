"""What a rank leaves to its replacement: kept when its world is established, and true for as long as the rank lives.

A setup record lies in a file beside the progress pages, which outlives the process. Where there are other hosts a part
of it goes to the coordinator as well, and outlives the host.

It also says what setup has made, because a replacement must have made the same. A script that resumes from the newest
checkpoint of its own makes a replacement that begins elsewhere than the others did: with fewer steps to go, or with
another model. It would wait for a step that no other rank runs.
"""

import os
from pathlib import Path

import msgspec

from understudy.groups.setup_replay import Op, Recording
from understudy.state.protected_state import Protected
from understudy.state.rank_local_buffers import Shown

_TRAVELS = 64 * 1024
"""Bytes of a recording that go to the coordinator, which has one of every rank."""

_RESUMES = (
    "If the script reads its own newest checkpoint when it starts, let every rank and every replacement read the same "
    "one (for example one that is named on the command line), and count steps from the beginning of the run"
)
_BUILDS = "Let the script build and protect the same things whenever it starts"


class SetupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What setup has made. `total`: of steps. `things`: what is protected, by name. `parameters`: type and local shape
    of each."""

    total: int = 0
    things: dict[str, str] = {}
    parameters: dict[str, str] = {}


def outcome_of(protected: Protected, total: int) -> SetupOutcome:
    parameters = {path: f"{tensor.dtype} {tuple(tensor.shape)}" for path, tensor in protected.own_parameters()}
    things = dict.fromkeys(protected.modules, "a module")
    things |= {
        name: f"an optimizer with {len(optimizer.param_groups)} parameter groups"
        for name, optimizer in protected.optimizers.items()
    }
    things |= dict.fromkeys(protected.objects, "an object with state")
    if protected.save is not None:
        things["save"] = "functions of the script"
    return SetupOutcome(total=total, things=things, parameters=parameters)


def difference(predecessor: SetupOutcome, own: SetupOutcome) -> str | None:
    """A sentence about the first difference, and what to do about it."""
    if predecessor.total != own.total:
        return f"its total of steps is {own.total}, but the job's is {predecessor.total}. {_RESUMES}"
    for before, now in ((predecessor.things, own.things), (predecessor.parameters, own.parameters)):
        for name in (*before, *now):
            if before.get(name) != now.get(name):
                was, found = before.get(name, "not there"), now.get(name, "not there")
                return f"{name} is {found}, but {was} in the rank that it replaces. {_BUILDS}"
    return None


class SetupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`recording`: what the rank was told in its setup. `holdings`: what it holds (`Protected.holdings`). `shown`:
    what it has shown to all ranks, its twin key above all. `outcome`: what its setup has made.

    Ranks of neighbouring versions read each other's records: names in the encoded form stay as they are."""

    recording: Recording = msgspec.field(default_factory=dict, name="script")
    holdings: dict[str, int] = {}
    shown: Shown | None = None
    outcome: SetupOutcome | None = msgspec.field(default=None, name="likeness")

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(content: bytes) -> "SetupRecord":
        """Empty when there is none: the rank was lost before its world was established."""
        return msgspec.msgpack.decode(content, type=SetupRecord) if content else SetupRecord()

    def for_elsewhere(self) -> "SetupRecord":
        """Without the longest messages: what steers a setup is short."""
        return msgspec.structs.replace(self, recording=shorten(self.recording, _TRAVELS))


def shorten(recording: Recording, most: int) -> Recording:
    """The same recording, with messages of `most` bytes in all. The longest are left out first."""
    lengths = sorted(len(part) for ops in recording.values() for op in ops for part in op.heard if part is not None)
    too_long = None
    for length in lengths:
        most -= length
        if most < 0:
            too_long = length
            break
    if too_long is None:
        return recording

    def shorter(op: Op) -> Op:
        kept = [part if part is not None and len(part) < too_long else None for part in op.heard]
        return Op(op.operation, kept)

    return {group: [shorter(op) for op in ops] for group, ops in recording.items()}


class SetupRecordFile:
    """Of one rank of one world. A world that starts over has files of its own."""

    def __init__(self, folder: str, founded_in: int, rank: int) -> None:
        self._path = Path(folder) / f"setup-record-{founded_in}-{rank}"
        self._own: SetupRecord | None = None
        self.trouble: str | None = None  # why it could not be written

    def write(self, record: SetupRecord) -> None:
        """Never raises: without the file only its short form is left, which goes to the coordinator."""
        self._own = record
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(record.encode())
            unfinished.replace(self._path)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            unfinished.unlink(missing_ok=True)

    def read(self) -> SetupRecord:
        """What was written here; else what the former holder of the rank left. Empty when the rank never was on this
        host, or was lost before its world was established."""
        if self._own is not None:
            return self._own
        try:
            return SetupRecord.decode(self._path.read_bytes())
        except FileNotFoundError:
            return SetupRecord()
