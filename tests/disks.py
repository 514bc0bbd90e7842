"""Small file systems of our own, for tests in which a disk is full or read-only."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "100k") -> Iterator[Path]:
    """A tmpfs of that size, mounted there. Skips the test where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(("mount", "-o", f"remount,{options}", str(folder)), check=True)


def fill(file: Path) -> None:
    """Write until nothing more fits."""
    with file.open("wb", buffering=0) as opened:
        try:
            while True:
                opened.write(b"x" * 4096)
        except OSError:
            return
