"""When a call on a volume counts as unanswered."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from regroup_trainer.checkpoint import volume_calls
from regroup_trainer.checkpoint.volume_calls import SLOW_SECONDS, VolumeHealth
from regroup_trainer.system.background import note_progress


def test_a_long_call_is_unanswered_only_where_it_does_not_get_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(volume_calls, "time", clock)
    health = VolumeHealth(Path("/job"))

    def work() -> float:
        for _ in range(3):
            now[0] += 0.9 * SLOW_SECONDS
            assert health.problem("") is None
            note_progress()
        now[0] += SLOW_SECONDS
        found = health.problem("")
        assert found is not None
        assert found.error == "the volume does not answer"
        return found.since

    since = health.insist(work, lambda _: True, threading.Event())
    assert since == now[0] - SLOW_SECONDS
    note_progress()
    assert health.problem("") is None, "what follows is no call of it"
