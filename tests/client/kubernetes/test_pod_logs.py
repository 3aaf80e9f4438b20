"""Whose lines `logs` prints, and what stands in front of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from regroup.kubernetes.cluster_api import LogQuery
from regroup.kubernetes.cluster_errors import ClusterError, unreachable
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.output import structured_line
from regroup.kubernetes.pod_logs import Choice, Follower, queries, read_logs
from regroup.kubernetes.pod_record import PodRecord, read_pods
from tests.support.cluster_objects import job_record, pod_object, recovery, running_status

ALL = LogQuery()
RUNNING = job_record(running_status())
ENDED = job_record(running_status(phase="Succeeded"))


class Logs:
    """Logs by pod and whether they are those before a restart."""

    def __init__(self, texts: dict[tuple[str, bool], list[str]]) -> None:
        self.texts = texts

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        assert (namespace, container) == ("team", "trainer")
        if (pod, query.previous) not in self.texts:
            raise ClusterError(f"no log of {pod}", 404)
        yield from self.texts[pod, query.previous]


def failed_pod(name: str = "gpt-w1-1", *, restarted: bool = False) -> dict[str, Any]:
    end = {"terminated": {"exitCode": 1}}
    state = {"state": {"running": {}}, "lastState": end} if restarted else {"state": end}
    return pod_object(name, containerStatuses=[{"name": "trainer", **state}])


def pods(*documents: dict[str, Any]) -> list[PodRecord]:
    return read_pods(documents)


def lines(source: Logs, chosen: list[PodRecord], choice: Choice) -> list[str]:
    notes: list[str] = []
    return [*read_logs(source, "team", chosen, choice, ALL, notes.append), *notes]


def test_lines_begin_with_the_rank_or_with_the_pod() -> None:
    source = Logs({("gpt-w0-1", False): ["rank 0: step 1", "agent: connected"]})
    found = lines(source, pods(pod_object()), Choice())
    assert found == ["rank 0: step 1", "gpt-w0-1: agent: connected"]


def test_lines_may_be_objects_or_have_the_pod_in_front_too() -> None:
    source = Logs({("gpt-w0-1", False): ["rank 0: step 1", "agent: connected"]})
    found = lines(source, pods(pod_object()), Choice(form=structured_line))
    assert list(map(json.loads, found)) == [
        {"pod": "gpt-w0-1", "rank": 0, "text": "step 1"},
        {"pod": "gpt-w0-1", "rank": None, "text": "agent: connected"},
    ]
    assert lines(source, pods(pod_object()), Choice(form=attrgetter("wide"))) == [
        "gpt-w0-1 rank 0: step 1",
        "gpt-w0-1: agent: connected",
    ]


def test_a_rank_is_found_in_whichever_pod_it_was() -> None:
    texts = {
        ("gpt-w0-1", False): ["rank 0: a", "rank 1: b", "agent"],
        ("gpt-w1-1", False): ["rank 10: c", "rank 1: d"],
    }
    chosen = Choice(rank=1).pods(
        RUNNING, pods(pod_object(), pod_object("gpt-w1-1"), pod_object("gpt-c1", "coordinator"))
    )
    assert lines(Logs(texts), chosen, Choice(rank=1)) == ["rank 1: b", "rank 1: d"]


def test_under_torchrun_a_rank_is_found_though_the_status_knows_no_ranks() -> None:
    workers = [{"index": n, "pod": f"gpt-w{n}-1", "state": "Running"} for n in range(2)]
    job = job_record(running_status(workers=workers), launcher="torchrun")
    choice = Choice(rank=1)
    chosen = choice.pods(job, pods(pod_object(), pod_object("gpt-w1-1")))
    texts = {
        ("gpt-w0-1", False): ["rank 0: step 1"],
        ("gpt-w1-1", False): ["W1126 torchrun", "rank 1: step 1"],
    }
    assert lines(Logs(texts), chosen, choice) == ["rank 1: step 1"]


def test_failed_pods_are_of_any_role_and_show_the_container_that_failed() -> None:
    given = pods(pod_object(), failed_pod(restarted=True), pod_object("gpt-c1", "coordinator"))
    choice = Choice(failed=True)
    assert [pod.name for pod in choice.pods(RUNNING, given)] == ["gpt-w1-1"]
    source = Logs({("gpt-w1-1", True): ["boom"], ("gpt-w1-1", False): ["again"]})
    found = lines(source, choice.pods(RUNNING, given), choice)
    assert found == ["gpt-w1-1: boom", "gpt-w1-1: again"]


@pytest.mark.parametrize(
    ("cause", "chosen"),
    [
        ("application", ["gpt-w1-1"]),
        ("hang", ["gpt-w1-1"]),
        ("infrastructure", ["gpt-w1-1"]),
        ("preemption", []),
        ("resize", []),
    ],
)
def test_a_pod_that_runs_on_after_its_rank_failed_counts_as_failed(
    cause: str, chosen: list[str]
) -> None:
    job = job_record(running_status(recoveries=[recovery(2, 60, cause=cause, pod="gpt-w1-1")]))
    given = pods(pod_object(), pod_object("gpt-w1-1"))
    found = Choice(failed=True).pods(job, given)
    assert [pod.name for pod in found] == chosen


def test_a_log_that_is_gone_is_named_and_the_others_are_printed() -> None:
    source = Logs({("gpt-w1-1", False): ["x"]})
    found = lines(source, pods(pod_object(), pod_object("gpt-w1-1")), Choice())
    assert found == ["gpt-w1-1: x", "gpt-w0-1: no log of gpt-w0-1"]


def test_a_pod_that_has_not_started_has_no_log() -> None:
    assert queries(pods(pod_object(phase="Pending"))[0], ALL) == []


class Open(Logs):
    """Streams that end once the pod has."""

    def __init__(self, texts: dict[tuple[str, bool], list[str]]) -> None:
        super().__init__(texts)
        self.ended = threading.Event()

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        yield from super().log(namespace, pod, container, query)
        assert self.ended.wait(60)


def test_following_takes_up_the_pod_that_replaces_another_and_ends_with_the_job() -> None:
    """The second pod appears once a line of the first was printed."""
    printed = threading.Event()
    source = Open({("gpt-w0-1", False): ["rank 0: a"], ("gpt-w0-2", False): ["rank 0: b"]})
    looks = iter([unreachable("https://x", "refused")])

    def look() -> tuple[JobRecord, list[PodRecord]]:
        if not printed.is_set():
            return RUNNING, pods(pod_object())
        for outage in looks:
            raise outage
        source.ended.set()
        return ENDED, pods(pod_object(phase="Failed"), pod_object("gpt-w0-2"))

    notes: list[str] = []
    follower = Follower(source, look, Choice(), LogQuery(follow=True), notes.append, pause=0.01)
    found = []
    for line in follower.lines():
        found.append(line)
        printed.set()
    assert found == ["rank 0: a", "rank 0: b"]
    assert len(notes) == 1
    assert "refused" in notes[0]


class Broken(Open):
    """A stream that breaks once, while its pod runs on, and then ends with the pod."""

    def __init__(self) -> None:
        super().__init__({("gpt-w0-1", False): ["rank 0: b"]})
        self.queries: list[LogQuery] = []

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        self.queries.append(query)
        if len(self.queries) == 1:
            yield "rank 0: a"
            raise unreachable("https://x", "reset")
        yield from super().log(namespace, pod, container, query)


def test_a_stream_that_breaks_is_taken_up_again_from_there() -> None:
    source, notes = Broken(), list[str]()

    def look() -> tuple[JobRecord, list[PodRecord]]:
        if len(source.queries) < 2:
            return RUNNING, pods(pod_object())
        source.ended.set()
        return ENDED, pods(pod_object(phase="Succeeded"))

    query = LogQuery(follow=True, tail_lines=7)
    follower = Follower(source, look, Choice(), query, notes.append, pause=0.01)
    assert list(follower.lines()) == ["rank 0: a", "rank 0: b"]
    first, again = source.queries
    assert first == query
    assert again.since_seconds
    assert again == LogQuery(follow=True, since_seconds=again.since_seconds)
    assert len(notes) == 1
    assert "reset" in notes[0]


def test_an_error_in_a_thread_is_one_line() -> None:
    class Odd(Logs):
        def log(self, *_: object) -> Iterator[str]:
            raise RuntimeError("odd")

    notes: list[str] = []
    look = lambda: (ENDED, pods(pod_object()))  # noqa: E731
    follower = Follower(Odd({}), look, Choice(), LogQuery(follow=True), notes.append, pause=0.01)
    assert list(follower.lines()) == []
    assert notes == ["gpt-w0-1: RuntimeError: odd"]
