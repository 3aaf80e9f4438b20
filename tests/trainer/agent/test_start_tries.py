"""When a script under torchrun has shown that it cannot start."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.agent.start_tries import ScriptEnd, cannot_start, tries_file

KEY = "Traceback (most recent call last):\n  File ...\nKeyError: 'SIZE'\n"
IMPORT = "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module 'a'\n"
FULL = "OSError: [Errno 28] No space left on device"


def ends(folder: Path, *tails: str, code: int = 1, seconds: float = 3.0) -> list[bool]:
    """After which of these tries, one restart each, the script cannot start."""
    tries = [ScriptEnd(code, seconds, tail, str(count)) for count, tail in enumerate(tails)]
    return [cannot_start(end, folder / "tries") for end in tries]


def test_the_same_error_in_three_tries_is_the_end(tmp_path: Path) -> None:
    assert ends(tmp_path, KEY, KEY, KEY) == [False, False, True]
    (tmp_path / "tries").unlink()
    assert not any(ends(tmp_path, KEY, "another", KEY, KEY))


def test_several_ranks_of_a_worker_fail_in_one_try(tmp_path: Path) -> None:
    end = ScriptEnd(1, 3.0, KEY, "0")
    assert not any(cannot_start(end, tmp_path / "tries") for _ in range(8))


def test_errors_of_import_and_usage_are_the_end_at_once(tmp_path: Path) -> None:
    assert ends(tmp_path, IMPORT) == [True]
    assert ends(tmp_path, "usage: train.py\ntrain.py: error: --epochs", code=2) == [True]


def test_what_may_pass_and_signals_do_not_count(tmp_path: Path) -> None:
    assert not any(ends(tmp_path, *[FULL] * 5))
    assert not any(ends(tmp_path, *[KEY] * 5, code=-9))


def test_a_crash_of_native_code_is_an_error_of_the_script(tmp_path: Path) -> None:
    assert ends(tmp_path, *["Fatal Python error: Aborted"] * 3, code=-6) == [False, False, True]
    assert not any(ends(tmp_path, *["Fatal Python error: Bus error"] * 5, code=-7))


def test_a_script_that_has_lived_a_minute_can_start(tmp_path: Path) -> None:
    assert not any(ends(tmp_path, KEY, seconds=61.0))
    assert not any(ends(tmp_path, *[IMPORT] * 5))


def test_without_a_place_to_write_torchrun_decides(tmp_path: Path) -> None:
    assert not any(ends(tmp_path / "nowhere", *[KEY] * 5))


def test_each_torchrun_has_a_file_of_its_own() -> None:
    assert tries_file(1) != tries_file(2)
    assert str(os.getuid()) in tries_file(1).name
