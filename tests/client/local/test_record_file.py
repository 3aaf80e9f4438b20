"""What a run leaves about itself."""

from __future__ import annotations

import os
from pathlib import Path

from regroup.local.record_file import RECORD_NAME, RecordWriter, read_record
from regroup.local.run_lock import LOCK_NAME, is_held, locked
from regroup.local.run_record import RunRecord
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome


def record(message: str = "trains", phase: str = "running", **changes: object) -> RunRecord:
    report = CoordinatorStatus.model_validate(
        {"term": 1, "sequence": 1, "revision": 1, "phase": phase, "message": message}
    )
    fields = {"job": "gpt", "workers": 2, "start": 1.0, "time": 2.0, "port": 80, "report": report}
    return RunRecord.model_validate({**fields, **changes})


def shown(folder: Path) -> str:
    found = read_record(folder)
    assert found is not None and found.report is not None
    return found.report.message


def write(writer: RecordWriter, found: RunRecord, now: float) -> None:
    writer.write(found, now)
    writer.join()


def test_a_change_is_written_at_once_and_numbers_each_second(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    write(writer, record("step 1"), 10.0)
    write(writer, record("step 2"), 10.5)
    assert shown(tmp_path) == "step 1"
    write(writer, record("step 3"), 11.0)
    assert shown(tmp_path) == "step 3"
    write(writer, record("it is lost", "recovering"), 11.1)
    assert shown(tmp_path) == "it is lost"
    writer.finish(record("all", outcome=Outcome(result="completed", message="")))
    assert shown(tmp_path) == "all"
    writer.begin()
    assert read_record(tmp_path) is None


def test_a_folder_that_refuses_costs_the_run_nothing(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).mkdir()
    writer = RecordWriter(tmp_path)
    writer.begin()
    write(writer, record(), 1.0)
    writer.finish(record())
    assert (tmp_path / RECORD_NAME).is_dir(), "it stays as it is"
    assert read_record(tmp_path) is None
    RecordWriter(tmp_path / "gone").finish(record())
    assert not (tmp_path / "gone").exists()


def test_a_folder_that_does_not_answer_does_not_hold_up_the_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{RECORD_NAME}.new")  # to open it waits for a reader
    writer = RecordWriter(tmp_path)
    writer.write(record("first"), 1.0)
    writer.write(record("second"), 9.0)
    assert read_record(tmp_path) is None
    with (tmp_path / f"{RECORD_NAME}.new").open() as reader:
        assert "first" in reader.read()
        writer.join()


def test_a_file_that_is_no_record_is_none(tmp_path: Path) -> None:
    file = tmp_path / RECORD_NAME
    for text in ("", "[]", "{", '{"job": 1}', "x" * 2_000_000):
        file.write_text(text)
        assert read_record(tmp_path) is None
    file.unlink()
    os.mkfifo(file)  # nobody writes into it
    assert read_record(tmp_path) is None


def test_whether_a_run_has_the_folder_is_seen_without_taking_its_lock(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with locked(tmp_path):
        assert is_held(tmp_path)
        (tmp_path / LOCK_NAME).write_text("1")  # of another process
        assert not is_held(tmp_path)
    assert not is_held(tmp_path)
