"""What a hostile or broken coordinator answers is refused as a whole, or harms no calculation."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.decide.planner import plan
from regroup_operator.observe import coordinator_answer
from regroup_operator.observe.coordinator_answer import (
    MOST_BYTES,
    kept_bytes,
    most_bytes,
    read_answer,
)
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.coordinator.coordinator_status import (
    MORE_IN_CONTACT,
    agents_in_contact,
    make_status,
)
from tests.support.large_job import LargeJob
from tests.support.operator_simulation import training

GENERATION = [1, 1]
ANSWER: dict[str, Any] = {
    "term": 1,
    "sequence": 3,
    "revision": 1,
    "phase": "running",
    "message": "training",
    "generation": GENERATION,
    "world_size": 3,
    "total_steps": 500,
    "members": [
        {"member": "m", "index": 0, "pod": "p", "node": "n", "rank": 0, "step": 7, "lost": ""}
    ],
    "progress": {
        "generation": GENERATION,
        "rank": 0,
        "step": 7,
        "time": 1.7e9,
        "seconds": {"step": 3.0},
        "loss": 2.5,
        "tokens": 700,
        "tokens_per_second": 10.0,
        "steps_per_second": 0.5,
    },
    "checkpoint": {
        "generation": GENERATION,
        "rank": 0,
        "step": 5,
        "path": "/c",
        "size_bytes": 10,
        "seconds": 1.0,
        "blocking_seconds": 0.5,
        "time": 1.7e9,
    },
    "ledger": {
        "seconds": {"step": 3.0, "idle": 1.0},
        "lost_work_seconds": 1.0,
        "lost_steps": 2,
        "restarts": {"hang": 1, "application": 2},
    },
    "recoveries": [
        {
            "sequence": 1,
            "time": 1.7e9,
            "cause": "hang",
            "restored_from": "Peers",
            "generation": GENERATION,
            "exit_code": -9,
            "lost_steps": 1,
            "unflushed_steps": 1,
            "resumed_from_step": 4,
            "detect_seconds": 1.0,
            "down_seconds": 2.0,
            "world_size_before": 3,
            "world_size_after": 2,
        }
    ],
    "stragglers": [{"rank": 1, "member": "m", "pod": "p", "node": "n", "percent": 40}],
    "events": [
        {"sequence": 1, "time": 1.7e9, "type": "Normal", "reason": "Started", "message": "m"}
    ],
    "volume": {"path": "/v", "error": "full", "since": 1.7e9, "at_risk": "the next save"},
}
"""Every field that holds a number, with one that is possible."""


def paths_of_numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, part in parts for found in paths_of_numbers(part, (*path, key))]
    return [path] if isinstance(value, int | float) else []


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """The answer with another value at `path`."""
    answer = json.loads(json.dumps(ANSWER))
    *parents, last = path
    holder = answer
    for part in parents:
        holder = holder[part]
    holder[last] = value
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("progress", "time"), 1e300, ".progress.time: must lie between 0 and"),
        (("progress", "time"), float("nan"), "expected value"),
        (("volume", "since"), 1e300, ".volume.since: must lie between 0 and"),
        (("progress", "step"), -1, ".progress.step: must lie between 0 and"),
        (("checkpoint", "size_bytes"), 2**70, ".checkpoint.size_bytes: must lie between 0 and"),
        (("members", 0, "rank"), -1, ".members.rank: must lie between 0 and"),
        (("spares",), -3, ".spares: must lie between 0 and"),
        (("world_size",), 2**31, ".world_size: must lie between 0 and 2147483647"),
        (("ledger", "seconds"), {str(n): 1.0 for n in range(3000)}, "has 3000 entries"),
        (("ledger", "seconds"), {"a" * 99: 1.0}, "has more than 32 characters"),
        (("ledger", "seconds"), {"step": 1e300}, ".ledger.seconds.step: must lie between"),
        (("ledger", "restarts"), {"hang": 2**31 - 1}, ".ledger.restarts.hang: must lie between"),
        (("generation",), [1, 2**70], ".generation: must lie between"),
        (
            ("ledger", "seconds"),
            {"\x1b[2J": 1.0},
            ".ledger.seconds: the name '\\x1b[2J' has charact",
        ),
        (("progress", "seconds"), {"\u202e": 1.0}, "seconds: the name '\\u202e' has characters"),
        (("ledger", "restarts"), {"\r": 1}, ".ledger.restarts: the name '\\r' has characters"),
        (("new",), json.loads("[" * 16 + "]" * 16), ".new: has more than 16 objects and lists in"),
        (("new",), json.loads('{"a":' * 90 + "0" + "}" * 90), ".a: has more than 16 objects"),
        (("new",), dict.fromkeys(map(str, range(65)), 1), ".new: has 65 entries, and at most 64"),
        pytest.param(("world_size",), 10**400, ".world_size: must lie", id="400 digits"),
        pytest.param(("progress", "loss"), -(10**4000), ".loss: must lie", id="4000 digits"),
        (("a" * 9999,), 1, "aaa..."),
        (("protocol",), "a\x1b[2J", "protocol 'a\ufffd[2J': this release speaks"),
        (("protocol",), "a" * 9999, "aaa..."),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_field(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        read_answer(changed(path, value), 1)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", [("phase",), ("world_size",), ("a new field",)])
@pytest.mark.parametrize("value", ["dancing", 2**80])
def test_another_version_of_the_protocol_is_refused_before_any_other_field(
    path: tuple[Any, ...], value: Any
) -> None:
    answer = {**json.loads(changed(path, value)), "protocol": 9}
    with pytest.raises(ValueError, match=r"^protocol 9: this release speaks protocols 1, 2.* 3: "):
        read_answer(json.dumps(answer).encode(), 1)


def test_another_version_of_the_protocol_is_refused_where_its_fields_are_ours() -> None:
    with pytest.raises(ValueError, match=r"^protocol 9: "):
        read_answer(changed(("protocol",), 9), 1)


@pytest.mark.parametrize("path", [("message",), ("members", 0, "lost"), ("recoveries", 0, "pod")])
@pytest.mark.parametrize("control", ["\x1b", "\x07", "\r", "\x9b", "\u202e"])
def test_no_text_holds_what_a_terminal_would_interpret(path: tuple[Any, ...], control: str) -> None:
    """Whoever prints the status as it is, by a template of kubectl, prints it to a terminal."""
    text = f"lost{control}[2J\nnode\u3000é\u00a0\tgone"
    shown = read_answer(changed(path, text), 1).model_dump_json()
    expected = json.dumps(text.replace(control, "\ufffd"), ensure_ascii=False)
    assert expected in shown


@pytest.mark.parametrize(
    "data", [b"[" * 9999, b'{"a":' * 9999, b"\xff", b"", b"7", b"null", b"[]", b"1" * 9999]
)
def test_what_is_no_status_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_answer(data, 1)


@pytest.mark.parametrize("workers", [DEFAULT_MAX_WORKERS, 10_000])
def test_an_answer_about_the_most_workers_is_read_and_one_that_is_longer_is_not(
    workers: int,
) -> None:
    """No installation allows more than the first of these numbers. The bound has room for more."""
    member = {"member": "m" * 36, "index": 1, "pod": "p" * 57, "node": "n" * 63, "rank": 1}
    members = [{**member, "step": 2**53 - 1, "lost": "no contact for 3 s"}] * workers
    answer = changed(("members",), members)
    assert 256 * 1024 < len(answer) < MOST_BYTES
    assert len(read_answer(answer, 1, workers).members) == workers
    with pytest.raises(ValueError, match="more than 4194304 bytes"):
        read_answer(answer + b" " * MOST_BYTES, 1, workers)


@pytest.mark.parametrize("workers", [1, 4096])
def test_all_agents_that_a_coordinator_names_while_a_job_starts_are_read(workers: int) -> None:
    job, names = LargeJob(workers), [str(uuid4()) for _ in range(workers + MORE_IN_CONTACT)]
    for number, name in enumerate(names):
        job.core.on_importing(number % workers, name, job.now)
    contacts = agents_in_contact(job.core.state, job.now)
    status = make_status(job.core.state, 1).model_copy(update={"agents_in_contact": contacts})
    read = read_answer(status.model_dump_json().encode(), 1, workers).agents_in_contact
    assert read is not None
    assert set(read) == set(names)


Shape = Callable[[int, int], bytes]
DEEP = b"".join(b'"%c%s":{' % (97 + level % 26, b"k" * 100) for level in range(190))
COSTLY: Mapping[str, Shape] = {
    "fields below long names": lambda _, values: (
        DEEP + b",".join(b'"%x":0' % field for field in range(values - 250)) + b"}" * 190
    ),
    "fields that are not known": lambda _, values: b",".join(
        b'"%x":0' % field for field in range(values - 5)
    ),
    "members without fields": lambda _, values: listed(b"members", b"{}", values - 9),
    "as many such members as may be": lambda workers, _: listed(b"members", b"{}", 1000 + workers),
    "agents without names": lambda _, values: listed(b"agents_in_contact", b"0", values - 9),
    "recoveries without fields": lambda _, values: listed(b"recoveries", b"{}", values // 2 - 9),
    "objects in one another": lambda _, values: listed(
        b"new", b'{"":' * 10 + b"0" + b"}" * 10, values // 11 - 9
    ),
    "lists in one another": lambda _, values: listed(
        b"new", b"[" * 180 + b"]" * 180, values // 181 - 9
    ),
    "more lists in one another": lambda workers, _: listed(
        b"new", b"[" * 180 + b"]" * 180, most_bytes(workers) // 361 - 9
    ),
    "places of one number": lambda _, values: listed(b"generation", b"0", values - 9),
    "a text of wide characters": lambda workers, _: (
        b'"message":"' + "\U0001f600".encode() + b"x" * (most_bytes(workers) - 50) + b'"'
    ),
    "a text of control characters": lambda workers, _: (
        b'"message":"' + "\U0001f600".encode() + b"\x7f" * (most_bytes(workers) - 50) + b'"'
    ),
    "a text of wide control characters": lambda workers, _: (
        b'"message":"' + "\u0600".encode() * (most_bytes(workers) // 2 - 25) + b'"'
    ),
}
"""What is refused -> the fields that it is made of, for a job of so many workers, which may have so
many values.
"""


def listed(name: bytes, entry: bytes, count: int) -> bytes:
    return b'"%s":[%s]' % (name, b",".join([entry] * count))


@pytest.mark.parametrize("workers", [1, 4096])
@pytest.mark.parametrize("shape", COSTLY)
def test_an_answer_that_is_refused_takes_little_more_memory_than_its_bytes_may(
    shape: str, workers: int
) -> None:
    values = 10_000 + 32 * workers
    answer = b'{"protocol":3,' + COSTLY[shape](workers, values) + b"}"
    most = most_bytes(workers)
    assert len(answer) <= most
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r".+"):
            read_answer(answer, 1, workers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * most + 2 * 2**20, f"{peak / 2**20:.1f} MiB"


@pytest.mark.parametrize("name", ["members", "agents_in_contact", "events", "recoveries"])
def test_a_list_that_is_too_long_is_refused_before_its_entries_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_answer, "CoordinatorStatus", None)
    with pytest.raises(ValueError, match=f"^{name}: has 2000 entries"):
        read_answer(b"{" + listed(name.encode(), b"{}", 2000) + b"}", 1, workers=1)


@pytest.mark.parametrize("part", [b"[]", b"1", b'{"a":1}', b'""'])
def test_an_answer_with_more_values_than_its_job_has_is_refused_before_it_is_decoded(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_answer, "from_json", None)
    with pytest.raises(ValueError, match="more than 10032 values, and the job 1 workers"):
        read_answer(b'{"agents_in_contact":[' + b",".join([part] * 20_000) + b"]}", 1, workers=1)
    with pytest.raises(ValueError, match="more than 263168 bytes, and the job 1 workers"):
        read_answer(b'{"message":"' + b"a" * 300_000 + b'"}', 1, workers=1)


@pytest.mark.parametrize(
    ("name", "most"),
    [("members", 1123), ("agents_in_contact", 1123), ("events", 200), ("recoveries", 40)],
)
def test_a_list_that_is_longer_than_its_job_can_make_it_is_refused(name: str, most: int) -> None:
    entries = {
        "members": {"member": "m", "index": 1, "pod": "p", "node": "n", "rank": 1, "step": 1},
        "agents_in_contact": "m",
        "events": {"sequence": 1, "time": 1, "type": "Normal", "reason": "A", "message": "b"},
        "recoveries": ANSWER["recoveries"][0],
    }
    for count in (most, most + 1):
        answer = json.dumps({**ANSWER, name: [entries[name]] * count}).encode()
        if count == most:
            assert len(getattr(read_answer(answer, 1, workers=99), name)) == most
        else:
            with pytest.raises(
                ValueError, match=f"{name}: has {count} entries, and at most {most}"
            ):
                read_answer(answer, 1, workers=99)


def test_of_the_stragglers_those_that_a_status_shows_are_kept() -> None:
    slow = {"member": "m", "pod": "p", "node": "n", "percent": 50}
    answer = changed(("stragglers",), [{**slow, "rank": rank} for rank in range(200)])
    assert [each.rank for each in read_answer(answer, 1).stragglers] == list(range(64))


def test_a_whole_number_is_bounded_however_it_is_written() -> None:
    with pytest.raises(ValueError, match="world_size: must lie between 0 and 2147483647"):
        read_answer(changed(("world_size",), 1e15), 1)


EXTREMES = (
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**53 - 1,
    2**63,
    2**70,
    10**400,
    1e15,
    1e300,
    5e-324,
    -1e300,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(paths_of_numbers(ANSWER)), st.sampled_from(EXTREMES)),
        min_size=1,
        max_size=6,
    )
)
def test_no_answer_that_is_taken_breaks_a_plan_or_writes_what_is_refused(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    answer = json.loads(json.dumps(ANSWER))
    for path, value in changes:
        holder = answer
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
    try:
        report = read_answer(json.dumps(answer).encode(), 1)
    except ValueError:
        return
    simulation = training()
    observed = replace(simulation.observed(), coordinator=CoordinatorView(report))
    what = plan(simulation.job(), observed, simulation.now)
    stored = what.status.model_dump(by_alias=True, mode="json", exclude_none=True)
    json.dumps(stored, allow_nan=False)
    type(what.status).model_validate(stored)


def test_names_of_phases_do_not_add_up_over_terms() -> None:
    simulation = training()
    for term in range(3):
        names = {f"{term}-{number}": 1.0 for number in range(16)}
        report = read_answer(changed(("ledger", "seconds"), names), 1)
        observed = replace(simulation.observed(), coordinator=CoordinatorView(report))
        simulation.status = plan(simulation.job(), observed, simulation.now).status
    assert len(simulation.status.ledger.seconds) == 16


@pytest.mark.parametrize(("members", "least"), [(1, 1), (1000, 300)])
@pytest.mark.parametrize("sign", ["x", "\u4e2d", "\U0001f600"])
def test_what_an_answer_takes_in_memory_is_counted(members: int, least: int, sign: str) -> None:
    """Also where its texts take four times as many bytes as they have characters."""
    made = [
        {**ANSWER["members"][0], "member": str(uuid4()), "node": f"{number}", "lost": sign * 200}
        for number in range(members)
    ]
    answer = {**ANSWER, "members": made, "agents_in_contact": [str(uuid4())]}
    data = json.dumps(answer, ensure_ascii=False).encode()
    read_answer(data, 1, members)
    tracemalloc.start()
    try:
        status = read_answer(data, 1, members)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert least * 1000 < kept <= kept_bytes(status) < 2 * kept + 10_000
