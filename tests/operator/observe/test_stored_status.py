"""A stored status is always read, also one of an earlier release or one edited by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.observe.stored_status import read_status
from tests.support.garbled_status import UNREADABLE_TIMES, garbled
from tests.support.version_one_records import VERSIONS, recorded

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_status_of_a_former_release_is_read_under_the_names_of_today(protocol: int) -> None:
    status, unreadable = read_status(recorded("job_status", VERSIONS[protocol]), NOW)
    assert unreadable == ()
    assert status.rendezvous_generation == "2.4"
    assert [recovery.restored_from for recovery in status.recoveries] == [
        "Nothing",
        "Peers",
        "Snapshot",
        "Checkpoint",
        "Script",
    ]
    assert (status.recoveries[1].world_size_before, status.recoveries[1].world_size_after) == (3, 2)
    assert (status.coordinator_term, status.next_incarnation, status.restart_count) == (2, 5, 2)
    assert (status.handled_pods, status.protocol_version) == (("uid-9",), protocol)


def test_former_names_are_never_written() -> None:
    status, _ = read_status(recorded("job_status"), NOW)
    written = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert "worldGeneration" not in written
    assert not {"rung", "worldBefore", "worldAfter"} & set(written["recoveries"][0])


def test_a_field_that_former_releases_wrote_is_no_problem_and_is_not_written_again() -> None:
    checkpoint = {"lastStep": 7, "path": "/c", "verified": True}
    status, unreadable = read_status({"checkpoint": checkpoint}, NOW)
    assert (status.checkpoint.last_step, status.checkpoint.path, unreadable) == (7, "/c", ())
    assert "verified" not in status.checkpoint.model_dump(by_alias=True)


def test_a_name_of_today_wins_over_the_former_one() -> None:
    both = {"worldGeneration": "1.1", "rendezvousGeneration": "2.2"}
    assert read_status(both, NOW)[0].rendezvous_generation == "2.2"


@pytest.mark.parametrize("raw", [None, {}])
def test_a_new_job_has_the_defaults(raw: Any) -> None:
    status, unreadable = read_status(raw, NOW)
    assert (status.coordinator_term, status.next_incarnation, unreadable) == (0, 1, ())


@pytest.mark.parametrize("field", ["coordinatorTerm", "nextIncarnation"])
@pytest.mark.parametrize("value", [-1, "many", None, [], 2**40, 2**31 - 1])
def test_a_number_that_cannot_be_read_continues_above_all_that_were_counted(
    field: str, value: Any
) -> None:
    status, unreadable = read_status({**recorded("job_status"), field: value}, NOW)
    numbers = {
        "coordinatorTerm": status.coordinator_term,
        "nextIncarnation": status.next_incarnation,
    }
    assert numbers[field] == int(NOW.timestamp())
    assert unreadable == (field,)


def test_one_bad_entry_costs_no_other_one() -> None:
    stored = recorded("job_status")
    stored["recoveries"][1]["time"] = 7
    stored["handledPods"] = ["uid-1", 7, "uid-2"]
    stored["restarts"]["hang"] = "often"
    stored["conditions"][0]["lastTransitionTime"] = {}
    stored["progress"] = "far"
    status, unreadable = read_status(stored, NOW)
    assert len(status.recoveries) == 4
    assert status.handled_pods == ("uid-1", "uid-2")
    assert (status.restarts.hang, status.restarts.infrastructure) == (0, 1)
    assert status.holds("Ready")
    assert status.progress.step == 0
    assert set(unreadable) == {
        "recoveries.1.time",
        "handledPods.1",
        "restarts.hang",
        "conditions.0.lastTransitionTime",
        "progress",
    }


@pytest.mark.parametrize("time", UNREADABLE_TIMES)
def test_a_time_that_cannot_be_read_is_left_out(time: str) -> None:
    stored = recorded("job_status") | {"startTime": time}
    stored["recoveries"][1]["time"] = time
    stored["conditions"][0]["lastTransitionTime"] = time
    status, unreadable = read_status(stored, NOW)
    assert status.start_time is None
    assert len(status.recoveries) == 4
    assert status.conditions[0].last_transition_time == "1970-01-01T00:00:00Z"
    assert set(unreadable) == {
        "startTime",
        "recoveries.1.time",
        "conditions.0.lastTransitionTime",
    }


def test_a_time_of_another_zone_is_kept() -> None:
    time = "2026-01-01T02:00:00+02:00"
    assert read_status({"startTime": time}, NOW)[0].start_time == time


def test_a_job_that_has_ended_stays_ended_whatever_else_is_odd_about_the_condition() -> None:
    condition = {"type": "Complete", "status": "True", "reason": 7, "message": [], "extra": 1}
    status, _ = read_status({"conditions": [condition]}, NOW)
    assert status.holds("Complete")


def test_many_unreadable_entries_cost_no_more_readings_than_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator reads statuses between two messages of coordinators."""
    readings: list[Any] = []
    validate = TrainingJobStatus.model_validate

    def counted(document: Any) -> TrainingJobStatus:
        readings.append(document)
        return validate(document)

    monkeypatch.setattr(TrainingJobStatus, "model_validate", counted)
    stored = {
        "handledPods": [7, "uid-1", *range(2000), "uid-2"],
        "nodeFailures": {f"m{number}": "many" for number in range(200)} | {"n1": 3},
        "startTime": "yesterday",
    }
    status, unreadable = read_status(stored, NOW)
    assert len(readings) <= 4
    assert (status.handled_pods, status.node_failures) == (("uid-1", "uid-2"), {"n1": 3})
    assert set(unreadable) == {"handledPods.*", "nodeFailures.*", "startTime"}


def test_several_faults_of_one_entry_cost_no_other_entry() -> None:
    stored = recorded("job_status")
    stored["recoveries"][1] |= {"time": None, "cause": {}, "down_seconds": "long"}
    status, _ = read_status(stored, NOW)
    sources = [recovery.restored_from for recovery in status.recoveries]
    assert sources == ["Nothing", "Snapshot", "Checkpoint", "Script"]


def test_a_name_of_any_length_is_quoted_short() -> None:
    _, unreadable = read_status({"nodeFailures": {"x y" * 10_000: 1}}, NOW)
    assert [len(path) for path in unreadable] == [100]


def test_a_status_that_is_no_object_is_named() -> None:
    assert read_status(["x"], NOW)[1] == ("status",)


@settings(deadline=None)
@given(garbled())
def test_no_status_is_refused_and_no_number_is_used_again(stored: dict[str, Any]) -> None:
    status, unreadable = read_status(stored, NOW)
    for name, number, counted in (
        ("coordinatorTerm", status.coordinator_term, 2),
        ("nextIncarnation", status.next_incarnation, 5),
    ):
        assert number >= counted or stored[name] == number
        assert name not in unreadable or number == int(NOW.timestamp())
