"""Following a job through changes, outages and watches that end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from regroup.kubernetes.cluster_errors import ClusterError, unreachable
from regroup.kubernetes.job_watch import Clock, follow

Json = dict[str, Any]
AWAY = unreachable("https://x", "connection refused")


def job(version: str) -> Json:
    return {"metadata": {"resourceVersion": version}}


class Played:
    """Answers in turn; an error is raised. After the last one the clock's end has come."""

    def __init__(self, gets: list[Json | ClusterError], watches: list[list[Any]]) -> None:
        self.gets, self.watches = gets, watches
        self.asked: list[str] = []
        self.slept: list[float] = []

    def job(self, namespace: str, name: str) -> Json:
        answer = self.gets.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    def watch_job(
        self, namespace: str, name: str, version: str, seconds: float
    ) -> Iterator[tuple[str, Json]]:
        self.asked.append(version)
        for event in self.watches.pop(0):
            if isinstance(event, ClusterError):
                raise event
            yield event

    def follow(self, notes: list[str] | None = None) -> list[str]:
        """The versions that are seen."""
        clock = Clock(1.0, lambda: 0.0 if self.watches else 2.0, self.slept.append)
        seen = follow(self, "team", "gpt", (notes if notes is not None else []).append, clock)
        return [str(found["metadata"]["resourceVersion"]) for found in seen]


def test_each_change_is_seen_and_the_next_watch_begins_after_it() -> None:
    played = Played([job("1")], [[("MODIFIED", job("2"))], [("MODIFIED", job("3"))], []])
    assert played.follow() == ["1", "2", "3"]
    assert played.asked == ["1", "2", "3"]


def test_an_outage_is_told_once_and_what_was_missed_is_read() -> None:
    notes: list[str] = []
    played = Played([job("1"), AWAY, job("5")], [[AWAY], []])
    assert played.follow(notes) == ["1", "5"]
    assert len(notes) == 1
    assert "connection refused" in notes[0]
    assert played.slept == [2.0, 2.0]


def test_a_version_that_is_too_old_is_read_anew() -> None:
    played = Played([job("1"), job("9")], [[("ERROR", {"code": 410})], []])
    assert played.follow() == ["1", "9"]


def test_a_job_that_is_deleted_is_an_error() -> None:
    with pytest.raises(ClusterError, match="trainingjob gpt was deleted"):
        Played([job("1")], [[("DELETED", job("2"))]]).follow()


def test_a_refusal_and_a_first_outage_are_errors() -> None:
    with pytest.raises(ClusterError, match="forbidden"):
        Played([job("1")], [[ClusterError("forbidden", 403)]]).follow()
    with pytest.raises(ClusterError, match="connection refused"):
        Played([AWAY], []).follow()
