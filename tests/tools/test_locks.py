"""A lock that another process holds is waited for, and the wait is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.locks import locked

HOLDER = """
import sys
from pathlib import Path
from tools.locks import locked

with locked(Path(sys.argv[1]), "the apples"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_wait_for_another_process_is_reported_and_ends_with_that_process(
    tmp_path: Path,
) -> None:
    file = tmp_path / "folder" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        ends = holder.stdin
        assert ends is not None
        assert holder.stdout.readline() == b"held\n"
        reported: list[str] = []

        def release(sentence: str) -> None:
            reported.append(sentence)
            ends.close()

        with locked(file, "the apples", release):
            assert reported == ["waiting for another process, which works on the apples"]


def test_a_free_lock_is_taken_without_a_report(tmp_path: Path) -> None:
    reported: list[str] = []
    with locked(tmp_path / "lock", "the apples", reported.append):
        assert not reported
