"""What a parent sees of its child processes."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.system.child_process import bytes_written

NOBODY = 2**22 + 1
"""No process has a number above 2^22."""


def test_what_a_process_writes_is_counted(tmp_path: Path) -> None:
    before = bytes_written([os.getpid(), NOBODY])
    (tmp_path / "saved").write_bytes(b"x" * 1000)
    assert bytes_written([os.getpid(), NOBODY]) >= before + 1000
    assert bytes_written([NOBODY]) == 0
