"""Where checkpoints meet torch.distributed.checkpoint: its writer, its reader, and its table of contents.

Data files are written by its `FileSystemWriter` and read by its `FileSystemReader`. Its table of contents is normally
made by a collective; here it is put together from the rank files, by any reader. `.metadata`, the file in which
others look for it, is a pickle by format: `write_metadata` makes it for them, and can make it anew at any time. Nothing
in Understudy reads it.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from understudy.errors import CheckpointError
from understudy.state.checkpoint.folders import Part, Stored, check_content, key_of, parts
from understudy.state.checkpoint.plan import PICKLE, Piece, Share


@dataclass(frozen=True, slots=True)
class _Prefix:
    """How the writer names its files. It looks at nothing else."""

    prefix: str


class _FromMemory(DefaultSavePlanner):
    """HostEffects the copies to the writer, one by one."""

    def __init__(self, tensors: dict[MetadataIndex, torch.Tensor], look_up: Callable[[], None]) -> None:
        super().__init__()
        self._tensors, self._look_up = tensors, look_up

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        self._look_up()
        tensor = self._tensors[write_item.index]
        return io.BytesIO(bytes(tensor.numpy())) if write_item.type == WriteItemType.BYTE_IO else tensor


def write_share(
    path: Path, prefix: str, share: Share, pieces: list[Piece], copies: list[torch.Tensor], look_up: Callable[[], None]
) -> list[Stored]:
    """Write what `share` says, through to the disk, into files whose names begin with `prefix`. `look_up` is called now
    and then, and may raise."""
    items, tensors, stored = [], {}, {}
    for place, stored_path in share.writes:
        item = _write_item(pieces[place], key_of(stored_path))
        items.append(item)
        tensors[item.index], stored[item.index] = copies[place], (pieces[place], stored_path)
    if not items:
        return []
    writer = FileSystemWriter(path, thread_count=1, per_thread_copy_ahead=0, sync_files=True)
    plan = SavePlan(items, storage_data=_Prefix(prefix))
    results = writer.write_data(plan, _FromMemory(tensors, look_up)).wait()
    return [_stored(*stored[result.index], result.storage_data) for result in results]


def _write_item(piece: Piece, key: str) -> WriteItem:
    if piece.dtype == PICKLE:
        return WriteItem(index=MetadataIndex(key), type=WriteItemType.BYTE_IO)
    whole = piece.sizes == piece.shape
    return WriteItem(
        index=MetadataIndex(key, piece.offsets),
        type=WriteItemType.TENSOR if whole else WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)),
            properties=TensorProperties(dtype=_dtype(piece.dtype)),
            size=torch.Size(piece.shape),
        ),
    )


def _stored(piece: Piece, path: tuple[str | int, ...], place: Any) -> Stored:
    aliases = piece.aliases if path == piece.path else ()
    return Stored(
        path,
        piece.dtype,
        piece.shape,
        piece.offsets,
        piece.sizes,
        place.relative_path,
        place.offset,
        place.length,
        aliases,
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"a tensor of the unknown type {name}")
    return dtype


# -- table of contents -------------------------------------------------------------------------------------------------


def metadata_of(found: Sequence[Part]) -> Metadata:
    contents: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    names: dict[str, tuple[str | int, ...]] = {}
    for stored in (each for part in found for each in part.stored):
        for path in (stored.path, *stored.aliases):
            key = key_of(path)
            names[key] = path
            if stored.dtype == PICKLE:
                contents[key] = BytesStorageMetadata()
                places[MetadataIndex(key)] = _StorageInfo(stored.file, stored.start, stored.length)
                continue
            described = contents.setdefault(
                key, TensorStorageMetadata(TensorProperties(dtype=_dtype(stored.dtype)), torch.Size(stored.shape), [])
            )
            if not isinstance(described, TensorStorageMetadata):
                raise CheckpointError(f"{key} is a tensor on one rank and none on another")
            described.chunks.append(ChunkStorageMetadata(torch.Size(stored.offsets), torch.Size(stored.sizes)))
            places[MetadataIndex(key, stored.offsets)] = _StorageInfo(stored.file, stored.start, stored.length)
    return Metadata(contents, planner_data=names, storage_data=places)


def write_metadata(path: Path) -> None:
    """Make a whole checkpoint readable for others: `torch.distributed.checkpoint.load(..., checkpoint_id=path)`."""
    metadata = metadata_of(parts(path))
    results = [WriteResult(index, place.length, place) for index, place in metadata.storage_data.items()]
    FileSystemWriter(path).finish(metadata, [results])


# -- reading -----------------------------------------------------------------------------------------------------------


class CheckpointReader:
    """Reads pieces of a whole checkpoint into tensors. A file is read through before anything is taken from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = parts(path)
        self.metadata = metadata_of(self.parts)
        self._lines = {line.name: line for part in self.parts for line in part.files}
        self._checked: set[str] = set()

    def described(self, key: str) -> TensorStorageMetadata | None:
        found = self.metadata.state_dict_metadata.get(key)
        return found if isinstance(found, TensorStorageMetadata) else None

    def read(self, into: dict[str, torch.Tensor]) -> None:
        """`into`: name -> a tensor, or DTensor, that is overwritten in place. Nothing is if this raises beforehand:
        everything must be there, whole, of the same type and shape."""
        wanted = {key: tensor for key, tensor in into.items() if _local_numel(tensor)}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(wanted, self.metadata, is_coordinator=True)
        reader = FileSystemReader(self.path)
        reader.set_up_storage_reader(self.metadata, is_coordinator=True)
        with torch.no_grad():
            try:
                plan = planner.create_local_plan()
                self._check(plan, wanted)
                reader.read_data(plan, planner).wait()
            except (OSError, RuntimeError, ValueError, AssertionError) as error:
                raise CheckpointError(f"{self.path.name} does not fit: {error}") from error

    def _check(self, plan: LoadPlan, wanted: dict[str, torch.Tensor]) -> None:
        covered = dict.fromkeys(wanted, 0)
        files = set()
        for item in plan.items:
            covered[item.dest_index.fqn] += item.lengths.numel()
            files.add(self.metadata.storage_data[item.storage_index].relative_path)
        for key, tensor in wanted.items():
            described = self.described(key)
            if described is None or described.properties.dtype != tensor.dtype:
                raise CheckpointError(f"{key} is {tensor.dtype} here, and not in {self.path.name}")
            if covered[key] != _local_numel(tensor):
                raise CheckpointError(f"{self.path.name} does not have all of {key} that is needed here")
        for name in sorted(files - self._checked):
            check_content(self.path, self._lines[name])
            self._checked.add(name)


def _local_numel(tensor: torch.Tensor) -> int:
    return tensor.to_local().numel() if isinstance(tensor, DTensor) else tensor.numel()
