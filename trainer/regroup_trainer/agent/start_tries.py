"""Whether a script under stock torchrun can start: torchrun would start it again until its
budget is spent, whatever the error.

The ranks of one worker note their failures in a file, and forget them with their torchrun. What
other workers show, the operator and the local run compare: see `api/torchrun_end.py`.
`protocol/torchrun_programs.py` ships the text of this module to images without Regroup.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer.system.program_error import CRASHES, end_may_pass, identity, is_certain

_MOST_TRIES = 3
_LIVED_SECONDS = 60.0
"""A script that has lived so long can start."""
_WRONG_USAGE = 2
"""Exit code of argparse, which another try ends with, too."""
_CAN_START = "it has lived long enough"


@dataclass(frozen=True)
class ScriptEnd:
    """How the process of a script ended."""

    code: int
    seconds: float
    """How long it lived."""
    stderr_tail: str
    count: str
    """TORCHELASTIC_RESTART_COUNT: several ranks of a worker may fail in one try."""


def tries_file(torchrun: int) -> Path:
    """Where the ranks of a worker note their failures; `torchrun` is the id of its process."""
    return Path(tempfile.gettempdir(), f"regroup-tries-{os.getuid()}-{torchrun}")


def cannot_start(end: ScriptEnd, file: Path) -> bool:
    """Count this end; returns whether the script has shown that no try will start it: by an error
    of syntax, import or usage, or by the same error three times in a row.
    """
    if end.seconds >= _LIVED_SECONDS:
        _note(file, [_CAN_START])
        return False
    by_itself = end.code > 0 or -end.code in CRASHES
    if not by_itself or end_may_pass(end.stderr_tail):
        return False
    before = _noted(file)
    if before[:1] == [_CAN_START]:
        return False
    error = identity(end.stderr_tail, end.code)
    counts = before[1:] if before[:1] == [error] else []
    tries = [*counts, end.count] if end.count not in counts else counts
    _note(file, [error, *tries])
    return end.code == _WRONG_USAGE or is_certain(error) or len(tries) >= _MOST_TRIES


def _noted(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").split("\n")
    except OSError:
        return []


def _note(file: Path, lines: list[str]) -> None:
    """Without a place to write, torchrun's own budget decides."""
    with contextlib.suppress(OSError):
        file.write_text("\n".join(lines), errors="replace")
