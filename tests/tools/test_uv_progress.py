"""The output of uv for the user: how much is fetched, how long it took, and what went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.uv_progress import UvProgress, run_with_progress


def read(*lines: str) -> UvProgress:
    progress = UvProgress()
    assert not any(progress.read(line) for line in lines)
    return progress


def test_progress_shows_how_much_is_fetched_and_which_large_packages_come_next() -> None:
    progress = read(
        "Resolved 180 packages in 1.20s",
        "Downloading nvidia-cudnn-cu13 (400.0MiB)",
        "Downloading torch (1.5GiB)",
        "Downloading numpy (16.0MiB)",
        "Downloading pandas (12.0MiB)",
        " Downloaded numpy",
    )
    assert progress.under_way() == (
        "0.0 of 2.1 GB fetched; to come: torch, nvidia-cudnn-cu13 and 1 more"
    )
    progress.read(" Downloaded torch")
    assert progress.under_way() == "1.6 of 2.1 GB fetched; to come: nvidia-cudnn-cu13, pandas"


def test_nothing_is_under_way_before_the_first_and_after_the_last_package() -> None:
    assert read().under_way() == ""
    assert read("Downloading torch (1.5GiB)", " Downloaded torch").under_way() == ""


def test_the_summary_has_the_times_of_fetching_and_of_installing() -> None:
    progress = read(
        "Prepared 170 packages in 3m 05s", "Installed 180 packages in 12.40s", " + a==1"
    )
    assert progress.summary() == "fetched in 3m 05s, installed in 12.40s"
    assert read("Audited 180 packages in 3ms").summary() == ""


def test_what_went_wrong_is_shown_and_its_exit_code_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; sys.stderr.write('Resolved 2 packages in 1ms\\nerror: no'); sys.exit(2)"
    assert run_with_progress([sys.executable, "-c", program], {}, tmp_path) == 2
    assert capsys.readouterr().out == "error: no\n"
