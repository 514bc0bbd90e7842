"""Small state that only one rank has (its random streams, the position of its loader, buffers that replicas do not
share), kept where it outlives the process: in two files beside the progress pages, one for even and one for odd steps.

A content belongs to the beginning of a step. It is written when the step begins, and before that at the fence of the
step before: should that step be committed without its rank, there is something to begin the next one with. An
older one is never needed, because no two ranks are ever further apart than one step.

Written without a lock: a digest shows whether what is found is whole.
"""

import os
import struct
from pathlib import Path

import xxhash

_HEADER = struct.Struct("<QQ16s")  # step, length, digest


class RankLocalFiles:
    """Of one rank. The holder of the rank writes; its replacement reads."""

    def __init__(self, folder: str, world: int, rank: int, kind: str = "rank-local") -> None:
        self._paths = [Path(folder) / f"{kind}-{world}-{rank}-{parity}" for parity in (0, 1)]
        self._files: list[int] = []

    def keep(self, step: int, content: bytes) -> str | None:
        """One system call; it is in the kernel's memory when this returns. What went wrong, or None: a rank trains on
        without, and only a replacement would miss it."""
        header = _HEADER.pack(step, len(content), xxhash.xxh3_128_digest(content))
        try:
            if not self._files:
                self._files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for path in self._paths]
            written = os.pwrite(self._files[step % 2], header + content, 0)
        except OSError as error:
            return error.strerror or str(error)
        return None if written == len(header) + len(content) else "no shared memory is left"

    def find(self, step: int) -> bytes | None:
        """What the rank had at the beginning of `step`; None when it was not kept."""
        try:
            found = self._paths[step % 2].read_bytes()
        except FileNotFoundError:
            return None
        if len(found) < _HEADER.size:
            return None
        kept_step, length, digest = _HEADER.unpack_from(found)
        content = found[_HEADER.size : _HEADER.size + length]
        whole = len(content) == length and xxhash.xxh3_128_digest(content) == digest
        return content if whole and kept_step == step else None
