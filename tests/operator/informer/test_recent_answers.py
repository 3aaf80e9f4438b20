"""Answers that count for a while: those that are there, small, and not about to go."""

from __future__ import annotations

from typing import Any

from regroup_operator.informer import recent_answers
from regroup_operator.informer.recent_answers import COUNTS_SECONDS, RecentAnswers

Json = dict[str, Any]
KEY = ("a", "shared")


class Server:
    """Has one object, or none, and counts how often it is asked."""

    def __init__(self, **metadata: Any) -> None:
        self.now = 100.0
        self.asked = 0
        self.found: Json | None = {"metadata": {"name": "shared", **metadata}, "spec": {}}
        self.answers = RecentAnswers(self._ask, lambda: self.now)

    async def _ask(self, *_: str) -> Json | None:
        self.asked += 1
        return self.found

    async def get(self, *, recent: bool = True) -> Json | None:
        return await self.answers.get(KEY, recent=recent)


async def test_an_answer_counts_for_a_while_for_those_who_only_look_again() -> None:
    server = Server()
    for _ in range(3):
        assert await server.get() == server.found
    assert server.asked == 1
    await server.get(recent=False)
    assert server.asked == 2
    server.now += COUNTS_SECONDS - 1
    await server.get()
    assert server.asked == 2
    server.now += 1
    await server.get()
    assert server.asked == 3


async def test_what_is_absent_or_about_to_go_is_asked_for_each_time() -> None:
    server = Server(deletionTimestamp="2026-01-01T00:00:00Z")
    for asked in (1, 2):
        await server.get()
        assert server.asked == asked
    server.found = None
    for asked in (3, 4):
        assert await server.get() is None
        assert server.asked == asked


async def test_a_large_object_is_not_kept_and_annotations_do_not_make_it_large() -> None:
    server = Server(labels={"a": "x" * 5000})
    await server.get()
    await server.get()
    assert server.asked == 2
    server = Server(annotations={"a": "x" * 5000})
    await server.get()
    assert await server.get() == {"metadata": {"name": "shared"}, "spec": {}}
    assert server.asked == 1


async def test_answers_are_forgotten_when_they_are_old_or_too_many(monkeypatch: Any) -> None:
    monkeypatch.setattr(recent_answers, "MOST_OBJECTS", 3)
    server = Server()
    for number in range(5):
        await server.answers.get(("a", str(number)), recent=True)
    assert list(server.answers._answers) == [("a", "2"), ("a", "3"), ("a", "4")]
    server.now += COUNTS_SECONDS
    await server.get()
    await server.get(recent=False)
    assert list(server.answers._answers) == [KEY]
