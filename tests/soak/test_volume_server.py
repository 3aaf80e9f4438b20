"""The volume of a soak behaves as a file system, and refuses changes or all upon an order."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from devcluster import packages
from devcluster.progress import silent
from devcluster.waiting import wait_until
from soak import volume
from soak.aim import Missed
from soak.volume import SoakVolume
from soak.volume_faults import volume_errors
from tests.support.soak_site import FakeJob, FakeSite, aim

pytestmark = [
    pytest.mark.cluster,  # FUSE comes from Debian, for Debian's own Python
    pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system"),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    packages.ensure(volume.FUSE, silent)
    content, mount = tmp_path / "content", tmp_path / "mount"
    content.mkdir()
    mount.mkdir()
    program = Path(volume.__file__).with_name("volume_server.py")
    server = subprocess.Popen(["/usr/bin/python3", program, content, mount, tmp_path / "refusal"])
    try:
        wait_until(mount.is_mount, 10, "The mount")
        yield mount
    finally:
        subprocess.run(["umount", mount], check=False)
        server.kill()
        server.wait()


def test_files_are_those_of_the_content(served: Path, tmp_path: Path) -> None:
    (served / "folder").mkdir()
    part = served / "part"
    part.write_bytes(b"shard")
    part.rename(served / "folder" / "whole")
    (served / "link").symlink_to("folder/whole")
    (served / "second").hardlink_to(served / "folder" / "whole")
    os.truncate(served / "second", 3)
    os.utime(served / "second", ns=(1, 1_000_000_001))
    assert (served / "link").read_bytes() == b"sha"
    assert (served / "folder" / "whole").stat().st_mtime_ns == 1_000_000_001
    assert (tmp_path / "content" / "folder" / "whole").read_bytes() == b"sha"
    assert sorted(path.name for path in served.iterdir()) == ["folder", "link", "second"]


def test_an_open_file_too_takes_nothing_while_the_volume_is_read_only(
    served: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "refusal"
    with (served / "history").open("ab", buffering=0) as history:
        history.write(b"1")
        flag.touch()
        refused: list[Callable[[], object]] = [
            partial(history.write, b"2"),
            (served / "new").touch,
            (served / "history").unlink,
            partial((served / "history").rename, served / "other"),
        ]
        for change in refused:
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change()
        flag.unlink()
        history.write(b"3")
    assert (served / "history").read_bytes() == b"13"


@pytest.mark.parametrize(("choice", "number"), [(0.0, errno.EIO), (0.9, errno.ESTALE)])
def test_all_that_is_asked_of_a_volume_with_errors_fails_for_open_files_too(
    choice: float, number: int, served: Path, tmp_path: Path
) -> None:
    made = SoakVolume("any", tmp_path / "content", served, tmp_path / "refusal", os.getpid())
    with (served / "history").open("w+b", buffering=0) as history:
        history.write(b"1")
        struck = volume_errors(aim(FakeSite(), FakeJob(volume=made), choice))
        assert struck.proof.startswith(f"a look at the volume failed: [Errno {number}]")
        refused: list[Callable[[], object]] = [
            partial(history.write, b"2"),
            partial(os.pread, history.fileno(), 1, 0),
            partial(os.fsync, history.fileno()),
            (served / "history").read_bytes,
            (served / "new").touch,
            served.stat,
            partial(os.listdir, served),
        ]
        for request in refused:
            with pytest.raises(OSError, match=re.escape(os.strerror(number))):
                request()
        struck.undo()
        history.write(b"3")
    assert (served / "history").read_bytes() == b"13"


def test_a_volume_that_gives_no_error_is_missed(tmp_path: Path) -> None:
    plain = SoakVolume("any", tmp_path, tmp_path, tmp_path / "refusal", os.getpid())
    with pytest.raises(Missed, match="gives no error"):
        volume_errors(aim(FakeSite(), FakeJob(volume=plain)))
    assert not plain.refusal.exists()
