"""Checkpoints as folders: which are whole, which are not and why, and which may go. Knows nothing of torch.

    <folder>/step-00000120/
        plan-3.json            what rank 3 holds, with digests; every rank derives from all plans which rank writes what
        __3_5f0c9a1e_0.distcp  rank 3's data, as torch.distributed.checkpoint writes it
        rank-3.json            written last: rank 3's part is durable; what it wrote, where, and digests of its files
        .metadata              for other readers of such checkpoints; derived from the rank files, and not needed here

A checkpoint is whole when the rank files of all ranks are there, say the same world size and were made for the same
plans, and the files that they list have the size that they list. Plans hold digests of all content, so parts of two
saves of the same step are never taken for one. Plans and rank files carry a digest of themselves.

Nothing here waits for another process. Whatever is written appears under its name at once and whole, or not at all.
"""

import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from understudy.errors import CheckpointError

FORMAT = 1
_BLOCK = 1 << 20
_PREFIX = "step-"

T = TypeVar("T")


class FileLine(msgspec.Struct, frozen=True, array_like=True):
    """One data file, as it must be found again."""

    name: str
    size: int
    digest: str


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """One written piece of a tensor, and where it is. `path`: its name in the state, from the outside in. `shape`: of
    the whole tensor; `offsets` and `sizes`: the piece. `aliases`: further names of the same (tied weights)."""

    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int
    aliases: tuple[tuple[str | int, ...], ...] = ()

    @property
    def key(self) -> str:
        return key_of(self.path)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank file says. `joint`: a digest of the plans of all ranks for which this part was written. `elsewhere`:
    names under which other ranks have other bytes, with the name under which this rank's are stored."""

    format: int
    step: int
    rank: int
    world_size: int
    joint: str
    stored: list[Stored]
    elsewhere: dict[str, str]
    files: list[FileLine]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, and what is wrong with it."""

    step: int
    path: Path
    trouble: str | None


def key_of(path: Iterable[str | int]) -> str:
    """The name that torch.distributed.checkpoint gives to what is at `path`."""
    return ".".join(map(str, path))


# -- names -------------------------------------------------------------------------------------------------------------


def step_folder(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step:08d}"


def plan_file(path: Path, rank: int) -> Path:
    return path / f"plan-{rank}.json"


def rank_file(path: Path, rank: int) -> Path:
    return path / f"rank-{rank}.json"


def _step_of(path: Path) -> int | None:
    digits = path.name.removeprefix(_PREFIX)
    return int(digits) if path.name.startswith(_PREFIX) and digits.isascii() and digits.isdigit() else None


# -- small files that are whole or absent ------------------------------------------------------------------------------


class _Sealed(msgspec.Struct, frozen=True):
    xxh3_128: str
    content: msgspec.Raw


def seal(content: msgspec.Struct) -> bytes:
    encoded = msgspec.json.encode(content)
    return msgspec.json.encode(_Sealed(xxhash.xxh3_128_hexdigest(encoded), msgspec.Raw(encoded)))


def read_sealed(path: Path, kind: type[T]) -> T:
    try:
        return unseal(path.read_bytes(), kind)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name}: the save did not finish") from None
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error


def unseal(content: bytes, kind: type[T]) -> T:
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        if xxhash.xxh3_128_hexdigest(bytes(sealed.content)) != sealed.xxh3_128:
            raise CheckpointError("it has changed since it was written")
        return msgspec.json.decode(sealed.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(str(error)) from error


def write_at_once(path: Path, content: bytes) -> None:
    """It survives the power going off when this returns; before that the old content is there, or nothing."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_file(path: Path) -> FileLine:
    """Read it once more as it was written."""
    state, size = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
            size += len(block)
    return FileLine(path.name, size, state.hexdigest())


# -- which are whole ---------------------------------------------------------------------------------------------------


def parts(path: Path) -> list[Part]:
    """What all ranks wrote. Raises with the reason if the checkpoint is not whole; does not read the data."""
    first = read_sealed(rank_file(path, 0), Part)
    found = [first, *(read_sealed(rank_file(path, rank), Part) for rank in range(1, first.world_size))]
    for rank, part in enumerate(found):
        if part.format != FORMAT:
            raise CheckpointError(f"rank-{rank}.json has format {part.format}, and only {FORMAT} is known here")
        if (part.step, part.rank) != (_step_of(path), rank):
            raise CheckpointError(f"rank-{rank}.json is of rank {part.rank} in step {part.step}")
        if (part.world_size, part.joint) != (first.world_size, first.joint):
            raise CheckpointError(f"rank {rank} has not finished: its part is of another save of this step")
        for line in part.files:
            _check_size(path, line)
    return found


def _check_size(path: Path, line: FileLine) -> None:
    try:
        size = (path / line.name).stat().st_size
    except OSError as error:
        raise CheckpointError(f"{line.name} is not there: {error.strerror}") from error
    if size != line.size:
        raise CheckpointError(f"{line.name} has {size} bytes instead of {line.size}")


def check_content(path: Path, line: FileLine) -> None:
    """Read a data file through; raises if it is not as it was written."""
    try:
        now = describe_file(path / line.name)
    except OSError as error:
        raise CheckpointError(f"{line.name} cannot be read: {error.strerror}") from error
    if now != line:
        raise CheckpointError(f"{line.name} has changed since it was written")


def examine(path: Path) -> str | None:
    """Reads everything; the reason why this checkpoint must not be used, or None."""
    try:
        for part in parts(path):
            for line in part.files:
                check_content(path, line)
    except CheckpointError as error:
        return str(error)
    return None


def survey(folder: Path) -> list[Found]:
    """Every checkpoint, newest first, by the cheap check. None of those without trouble was read through."""
    found = []
    for path in _step_folders(folder):
        trouble = None
        try:
            parts(path)
        except CheckpointError as error:
            trouble = str(error)
        found.append(Found(_step_of(path) or 0, path, trouble))
    return found


def _step_folders(folder: Path) -> list[Path]:
    """Newest first."""
    try:
        paths = [path for path in folder.iterdir() if _step_of(path) is not None and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(paths, key=lambda path: _step_of(path) or 0, reverse=True)


def whole_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Step and path, newest first, by the cheap check."""
    return [(found.step, found.path) for found in survey(folder) if found.trouble is None]


def newest_sound(folder: Path) -> tuple[Found | None, list[Found]]:
    """The newest checkpoint of which every byte is as it was written, and the newer ones that were passed over."""
    passed_over: list[Found] = []
    for found in survey(folder):
        trouble = found.trouble or examine(found.path)
        if trouble is None:
            return found, passed_over
        passed_over.append(Found(found.step, found.path, trouble))
    return None, passed_over


# -- which may go ------------------------------------------------------------------------------------------------------


def prune(folder: Path, keep: int) -> list[str]:
    """Remove what is older than the newest `keep` whole checkpoints, unfinished ones too. What was removed, in words.

    Whatever is newer than the oldest of those kept stays, so that it can be looked at."""
    found = survey(folder)
    whole = [checkpoint.step for checkpoint in found if checkpoint.trouble is None]
    if len(whole) < keep:
        return []
    said = []
    for checkpoint in found:
        if checkpoint.step < whole[keep - 1]:
            said.append(f"{checkpoint.path.name} ({checkpoint.trouble or 'whole'})")
            remove(checkpoint.path)
    return said


def remove(path: Path) -> None:
    """Should this be interrupted, what is left is not whole."""
    rank_file(path, 0).unlink(missing_ok=True)
    sync_folder(path)
    shutil.rmtree(path)
