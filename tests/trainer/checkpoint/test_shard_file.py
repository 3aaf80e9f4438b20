"""Shard files are written whole or not at all, on any file system."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from regroup_trainer.checkpoint import catalog, shard_file
from tests.support.disks import mounted

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")


def paged(content: bytes) -> memoryview:
    """In memory of whole pages."""
    memory = mmap.mmap(-1, -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory[: len(content)] = content
    return memoryview(memory)


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.mark.parametrize("size", [1, 4096, 5000, 20_000_001])
def test_a_file_has_the_bytes_and_the_checksum_of_its_record(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    record = shard_file.write(tmp_path / "shard", paged(content), size)
    assert (tmp_path / "shard").read_bytes() == content
    assert catalog.file_record(tmp_path / "shard") == record


def test_memory_that_begins_anywhere_can_be_written_too(tmp_path: Path) -> None:
    record = shard_file.write(tmp_path / "shard", memoryview(b"xyz" * 1000)[1:], 2999)
    assert catalog.file_record(tmp_path / "shard") == record


@root_only
def test_the_error_of_a_full_disk_says_what_was_needed_and_nothing_stays(memory_disk: Path) -> None:
    folder = memory_disk / "step-1.tmp"
    folder.mkdir()
    with pytest.raises(
        OSError, match=r"No space left on device: shard needs 2000000 bytes, \d+ bytes are free in"
    ):
        shard_file.write(folder / "shard", paged(bytes(2_000_000)), 2_000_000)
    assert list(folder.iterdir()) == []
    shard_file.write(folder / "shard", paged(bytes(500_000)), 500_000)
