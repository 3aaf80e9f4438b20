"""A text that the next process finds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from regroup_trainer.system import kept_file
from regroup_trainer.system.kept_file import KeptFile
from tests.support.waiting import wait_until


def test_the_newest_text_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = KeptFile(path)
    assert kept.read() == ""
    for number in range(100):
        kept.write(str(number))
    wait_until("the newest text", lambda: KeptFile(path).read() == "99")
    assert list(tmp_path.iterdir()) == [path]


def test_a_slow_disk_holds_up_nobody_and_gets_only_the_newest_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, written = threading.Event(), []

    def replace(_path: Path, text: str) -> None:
        may_write.wait(60)
        written.append(text)

    monkeypatch.setattr(kept_file, "replace_text", replace)
    kept = KeptFile(tmp_path / "kept")
    for number in range(100):
        kept.write(str(number))
    may_write.set()
    wait_until("the newest text", lambda: written[-1:] == ["99"])
    assert len(written) <= 2


def test_a_text_that_cannot_be_kept_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptFile(tmp_path / "missing" / "kept")
    for number in range(3):
        kept.write(str(number))
        wait_until("the end of the thread", lambda: not kept._writes)
    assert caplog.text.count("cannot keep the state") == 1
    (tmp_path / "kept").mkdir()
    assert KeptFile(tmp_path / "kept").read() == ""


def test_without_a_path_nothing_is_kept() -> None:
    kept = KeptFile(None)
    kept.write("text")
    assert kept.read() == ""
