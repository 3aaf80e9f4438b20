"""What a heartbeat's thread knows of the coordinator: since when it is not heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regroup_trainer.agent.heartbeat import Heartbeat
from tests.support.silent_server import SilentServer
from tests.support.waiting import wait_until


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    heartbeat = Heartbeat("http://127.0.0.1:9", "token", "uid-0", 0, 0.02, lambda: None)
    yield heartbeat
    heartbeat.stop()
    heartbeat.join(5)


def test_silence_is_counted_from_the_first_unanswered_heartbeat_to_the_next_answer(
    heartbeat: Heartbeat,
) -> None:
    assert heartbeat.unheard_seconds() == 0.0
    heartbeat.start()
    wait_until("silence", lambda: heartbeat.unheard_seconds() > 0.3)
    with SilentServer(answers=True) as server:
        heartbeat.url = server.url
        wait_until("an answer", lambda: heartbeat.unheard_seconds() == 0.0)
        server.answers = False
        wait_until("a heartbeat without an answer", lambda: heartbeat.unheard_seconds() > 0.5)


def test_an_unheard_coordinator_is_asked_again_at_once_although_heartbeats_are_rare(
    heartbeat: Heartbeat,
) -> None:
    heartbeat.seconds = 60.0
    heartbeat.start()
    wait_until("silence", lambda: heartbeat.unheard_seconds() > 0)
    with SilentServer(answers=True) as server:
        heartbeat.url = server.url
        wait_until("an answer", lambda: heartbeat.unheard_seconds() == 0.0, seconds=10)
