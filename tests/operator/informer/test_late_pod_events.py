"""Events of a pod that starts late are asked for now and then."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.errors import ClusterError
from regroup_operator.informer.late_pod_events import COUNTS_SECONDS, LatePod, LatePodEvents


def failed_mount(message: str) -> dict[str, Any]:
    """An event of a kubelet."""
    return {"reason": "FailedMount", "message": message, "lastTimestamp": "2026-01-01T00:00:00Z"}


async def test_events_of_a_pod_are_asked_for_once_in_some_seconds() -> None:
    """A round that each change of a pod causes would have the API server go through all events."""
    asked: list[str] = []
    now = 100.0

    async def ask(_namespace: str, uid: str) -> list[dict[str, Any]]:
        asked.append(uid)
        return [failed_mount(f"no volume {len(asked)}")]

    events = LatePodEvents(ask, lambda: now)
    for _ in range(50):
        assert (await events.get("a", "uid-1")).mount_failure == "no volume 1"
    await events.get("a", "uid-2")
    assert asked == ["uid-1", "uid-2"]
    now += COUNTS_SECONDS
    assert await events.get("a", "uid-1") == LatePod("no volume 3", "")
    assert list(events._answers) == ["uid-1"], "what is old takes no memory"


async def test_a_refusal_is_no_answer() -> None:
    async def ask(_namespace: str, _uid: str) -> list[dict[str, Any]]:
        raise ClusterError("GET", "/events", 403, "no such right")

    events = LatePodEvents(ask)
    for _ in range(2):
        with pytest.raises(ClusterError):
            await events.get("a", "uid-1")
