"""The runs of this machine on the page: what their folders hold, whatever that is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from regroup.local.record_file import RECORD_NAME
from regroup.local.run_lock import LOCK_NAME, locked
from regroup.local.run_record import RunRecord
from regroup.web_page import local_source
from regroup.web_page.job_source import NoSuchJobError, SourceError
from regroup.web_page.local_source import LocalSource
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import (
    SERIES_FILE,
    CoordinatorStatus,
    Series,
    SeriesPoint,
)


def report(**changes: Any) -> CoordinatorStatus:
    member = {"member": "m0", "index": 0, "pod": "gpt-w0-0", "node": "local-0", "step": 7}
    other = {**member, "member": "m1", "index": 1, "pod": "gpt-w1-0", "rank": None}
    fields = {
        "term": 1, "sequence": 1, "revision": 1, "phase": "running", "message": "trains",
        "world_size": 2, "generation": GenerationNumber(1, 2),
        "members": [{**other, "lost": "killed"}, {**member, "rank": 0}],
        "recoveries": [{
            "sequence": 2, "time": 15.0, "cause": "infrastructure", "restored_from": "Peers",
            "generation": [1, 2], "message": "gpt-w1-0 is lost", "down_seconds": 0.5,
            "world_size_before": 4, "world_size_after": 2,
        }],
        "events": [
            {"sequence": n, "time": 10.0 + n, "type": "Normal", "reason": f"R{n}", "message": ""}
            for n in range(2)
        ],
    }  # fmt: skip
    return CoordinatorStatus.model_validate({**fields, **changes})


def make_run(folder: Path, **changes: Any) -> Path:
    """A folder as a run leaves it."""
    (folder / "logs").mkdir(parents=True)
    (folder / LOCK_NAME).touch()
    fields = {"job": "gpt", "workers": 2, "start": 10.0, "time": 20.0, "port": 0}
    record = RunRecord.model_validate({**fields, "report": report(), **changes})
    (folder / RECORD_NAME).write_text(record.model_dump_json())
    return folder


def completed() -> dict[str, str]:
    return {"result": "completed", "message": "all steps are done"}


def test_a_folder_of_runs_and_the_folder_of_one_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt", outcome=completed())
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").touch()
    assert [*LocalSource(tmp_path).jobs()] == ["gpt"]
    assert LocalSource(run).jobs()["gpt"].phase == "Succeeded"
    assert LocalSource(tmp_path / "none").jobs() == {}


def test_how_many_older_runs_are_left_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "gpt")
    source = LocalSource(tmp_path)
    source.jobs()
    assert source.title == f"Runs in {tmp_path}"
    make_run(tmp_path / "other")
    monkeypatch.setattr("regroup.web_page.local_source.MOST_FOLDERS", 1)
    assert len(source.jobs()) == 1
    assert source.title == f"Runs in {tmp_path}, without 1 older one"


def test_a_run_shows_its_workers_recoveries_and_events(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt")
    with locked(run):
        view = LocalSource(tmp_path).view("gpt")
    assert view.record.phase == "Running"
    assert [r.generation for r in view.record.status.recoveries] == ["1.2"]
    assert [(w.worker, w.ranks, w.state, w.step, w.note) for w in view.workers] == [
        (0, "0-1", "Training", 7, ""),
        (1, "", "Lost", 7, "killed"),
    ]
    assert [event.reason for event in view.events] == ["R1", "R0"]


def test_a_run_of_torchrun_shows_its_step_and_how_it_ended(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"report": None, "launcher": "torchrun", "step": 3, "total_steps": 9}
    run = make_run(tmp_path / "gpt", **changes)
    with locked(run):
        record = LocalSource(tmp_path).view("gpt").record
    assert (record.phase, record.status.progress.step) == ("Running", 3)
    assert record.status.progress.percentage == 33
    make_run(tmp_path / "done", **changes, outcome=completed())
    assert LocalSource(tmp_path).view("done").record.phase == "Succeeded"


def test_a_run_that_was_killed_does_not_train_any_more(tmp_path: Path) -> None:
    make_run(tmp_path / "gpt")
    record = LocalSource(tmp_path).view("gpt").record
    assert record.phase == "Failed"
    assert "was killed" in record.status.message


def test_a_run_without_a_record_shows_what_is_known(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt")
    (run / RECORD_NAME).unlink()
    assert LocalSource(tmp_path).jobs()["gpt"].phase == "Unknown"
    with locked(run):
        assert LocalSource(tmp_path).jobs()["gpt"].phase == "Starting"


def test_a_run_that_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = make_run(tmp_path / "gpt", outcome=completed()), LocalSource(tmp_path)
    first = source.view("gpt")
    monkeypatch.setattr(local_source, "read_record", lambda path: None)
    assert source.view("gpt") is first
    with locked(run):
        assert source.view("gpt").record.phase == "Starting"
    shutil.rmtree(run)
    assert source.jobs() == {} == source._known


def test_a_record_with_times_that_no_clock_has_hides_no_other_run(tmp_path: Path) -> None:
    make_run(tmp_path / "good", outcome=completed())
    events = [{"sequence": 1, "time": -1e300, "type": "Normal", "reason": "R", "message": ""}]
    hostile: dict[str, dict[str, Any]] = {
        "start": {"start": 1e300},
        "event": {"report": report(events=events)},
        "\udcff": {},
    }
    for name, changes in hostile.items():
        make_run(tmp_path / name, **changes)
    source = LocalSource(tmp_path)
    assert {name: job.phase for name, job in source.jobs().items()} == {
        "good": "Succeeded",
        "start": "Unknown",
        "event": "Unknown",
    }
    assert source.view("event").events == []


@pytest.mark.parametrize("name", ["..", "../gpt", "/etc", "", "gpt/", "no-run", "x" * 300])
def test_only_a_run_that_was_found_is_shown(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "runs/gpt")
    make_run(tmp_path / "gpt")
    source = LocalSource(tmp_path / "runs")
    for read in (source.view, source.series, source.checkpoints):
        with pytest.raises(NoSuchJobError):
            read(name)
    with pytest.raises(NoSuchJobError):
        source.logs(name, None)


def test_logs_are_the_last_lines_of_ranks_without_escapes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt")
    lines = [f"rank {n % 2}: \x1b[31mstep {n}\x1b[0m" for n in range(20_000)]
    (run / "logs/gpt-w0-0.log").write_text("\n".join(["agent: begins", *lines]) + "\n")
    (run / "logs/gpt-w1-0.log").write_text("rank 2: \ufffd\n")
    os.mkfifo(run / "logs/pipe.log")
    tail = LocalSource(tmp_path).logs("gpt", None)
    assert len(tail.lines) == 251
    assert "rank 1: step 19999" in tail.lines
    assert {*LocalSource(tmp_path).logs("gpt", 2).lines} == {"rank 2: \ufffd"}
    assert all(line.startswith("rank 1: ") for line in LocalSource(tmp_path).logs("gpt", 1).lines)


def test_the_newest_logs_are_read_and_the_others_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt")
    for n in range(70):
        (run / f"logs/gpt-w0-{n}.log").write_text(f"rank 0: {n}\n")
    assert LocalSource(tmp_path).logs("gpt", None).note == "6 older logs are left out"


def test_the_series_of_the_folder_is_shown(tmp_path: Path) -> None:
    run, source = make_run(tmp_path / "gpt"), LocalSource(tmp_path)
    assert source.series("gpt") == ()
    points = (SeriesPoint(time=1.0, step=1, world_size=1, loss=2.0),)
    (run / SERIES_FILE).write_text(Series(points=points).model_dump_json())
    assert source.series("gpt") == points
    (run / SERIES_FILE).write_text("{")
    with pytest.raises(SourceError, match=r"series\.json"):
        source.series("gpt")


def test_checkpoints_that_cannot_be_listed_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LocalSource(tmp_path)
    run = make_run(tmp_path / "gpt")
    assert source.checkpoints("gpt").saved == ()
    (run / "checkpoints").mkdir()
    monkeypatch.setattr(local_source, "MODULE", "no_such_module_of_ours")
    with pytest.raises(SourceError, match="No module named"):
        source.checkpoints("gpt")
