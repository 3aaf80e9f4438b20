"""What `describe` shows."""

from __future__ import annotations

from regroup.kubernetes.event_record import read_events
from regroup.kubernetes.job_description import describe, description_lines, worker_table
from regroup.kubernetes.output import structured
from tests.support.cluster_objects import (
    NOW,
    event_object,
    job_record,
    recovery,
    running_status,
)


def described(**status: object) -> str:
    events = read_events([event_object("WorkerLost", "worker gpt-w1-1 is lost " * 6, ago=90)])
    lines = description_lines(job_record(running_status(**status)), events, NOW, 80)
    assert max(map(len, lines)) <= 80
    return "\n".join(lines)


def test_every_section_is_there() -> None:
    text = described()
    assert "  training      115m   95.8%" in text
    assert "  83m   infrastructure   1.2   3 -> 2   2.3s   0 steps   Peers" in text
    assert "      worker gpt-w1-1 on n2 is lost: no heartbeat for 2.0 s" in text
    assert "  0        Training   0            gpt-w0-1   n1" in text
    assert "  90s   Warning   WorkerLost" in text


def test_a_job_of_which_nothing_is_known_yet() -> None:
    text = "\n".join(description_lines(job_record(), [], NOW, 80))
    assert "no operator has looked at this job yet" in text
    assert "no time was accounted for yet" in text
    assert text.count("\n  none") == 4


def test_the_pod_and_exit_code_are_shown_where_the_message_leaves_them_out() -> None:
    text = described(recoveries=[recovery(2, 50, message="the program failed", exitCode=3)])
    assert "gpt-w1-1 on n2: the program failed (exit code 3)" in text


def test_a_status_of_another_release_is_named() -> None:
    assert "Cannot be read:  status.recoveries" in described(recoveries=[{"time": "?"}])


def test_workers_have_a_column_of_the_steps_that_are_known() -> None:
    header, first, *_, last = worker_table(job_record(running_status()), {0: 131})
    assert header.split() == ["WORKER", "STATE", "FIRST", "RANK", "STEP", "POD", "NODE"]
    assert first.split() == ["0", "Training", "0", "131", "gpt-w0-1", "n1"]
    assert last.split()[3] == "-"


def test_workers_beyond_those_of_the_status_are_counted() -> None:
    workers = [
        {"index": n, "pod": f"gpt-w{n}-1", "state": "Training", "rank": n} for n in range(64)
    ]
    assert "and 936 more" in described(workers=workers, replicas=1000)


def test_wide_shows_all_events() -> None:
    events = read_events([event_object(f"Event{n}", "x", ago=n) for n in range(30)])
    plain, wide = (
        description_lines(job_record(running_status()), events, NOW, 80, wide=w)
        for w in (False, True)
    )
    assert sum("Event" in line for line in plain) == 1 + 20
    assert sum("Event" in line for line in wide) == 1 + 30


def test_events_come_newest_first_and_say_how_often() -> None:
    first = event_object("A", "a", ago=10, count=3)
    assert [e.reason for e in read_events([event_object("B", "b"), first])] == ["A", "B"]
    shown = described()
    assert "times" not in shown
    events = read_events([first])
    lines = description_lines(job_record(running_status()), events, NOW, 80)
    assert any("A (3 times)" in line for line in lines)


def test_as_json_it_has_the_names_of_the_api() -> None:
    text = structured(describe(job_record(running_status()), []), "json")
    assert '"restoredFrom": "Peers"' in text
    assert '"unreadableFields": []' in text
