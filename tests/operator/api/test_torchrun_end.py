"""The rule by which an attempt of stock torchrun ends."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.api.torchrun_end import (
    AttemptState,
    cannot_start,
    gave_up,
    judge,
    lost_peer,
    shorten,
    was_refused,
    why_it_ended,
)


def make_state(**fields: Any) -> AttemptState:
    """Two workers of at least two, both ended well."""
    given: dict[str, Any] = {
        "well": 2, "running": 0, "failures": (), "waits_in_vain": False, "fewest": 2
    }  # fmt: skip
    return AttemptState(**{**given, **fields})


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (make_state(), "complete"),
        (make_state(well=1, running=1), "open"),
        (make_state(well=0, running=2), "open"),
        (make_state(well=0), "open"),  # workers are replaced
        (make_state(well=1), "again"),
        (make_state(well=1, fewest=1), "complete"),
        (make_state(well=1, running=1, waits_in_vain=True), "again"),
        (make_state(waits_in_vain=True), "again"),
        (make_state(failures=("rank 2 failed with exit code 1:\nValueError",)), "again"),
        (make_state(failures=("rank 2 was ended by SIGKILL:",)), "again"),
        (make_state(failures=("RendezvousClosedError",)), "complete"),  # it came too late
        (make_state(well=0, failures=("...api.RendezvousClosedError",)), "again"),
        (make_state(well=0, running=1, failures=("RendezvousClosedError",)), "open"),
    ],
)
def test_an_attempt_ends_by_the_rule(state: AttemptState, outcome: str) -> None:
    assert judge(state).outcome == outcome


def test_a_long_message_keeps_its_first_line_and_its_ends() -> None:
    long = shorten("what\nKeyError" + "x" * 1000 + "why", 200)
    assert long.startswith("what\nKeyErrorx")
    assert "x\n[...]\nx" in long
    assert long.endswith("xwhy")
    assert len(long) == 200
    assert shorten("what\n" + "x" * 100 + "why", 20) == "what\n" + "x" * 12 + "why"
    assert shorten("what happened", 4) == "what"
    assert shorten("what\nwhy", 20) == "what\nwhy"


def test_ranks_that_would_wait_in_vain_are_no_matter_of_restarts() -> None:
    message = "rank 1 failed with exit code 2; another try would fail too:\nConfigurationError: ..."
    assert gave_up(message)
    assert why_it_ended(message, 10)[0] == "FailsAtStart"
    assert why_it_ended("rank 0 failed; torchrun gives up after 10 restarts", 10) == (
        "RestartsExhausted",
        "torchrun gave up (spec.restartPolicy.maxRestarts=10)",
    )


def test_a_program_cannot_start_where_every_worker_has_shown_that() -> None:
    message = "rank 1 failed with exit code 1; it cannot start:\nKeyError: 'SIZE'"
    assert cannot_start(make_state(well=0, failures=(message,) * 2)) == message
    assert why_it_ended(message, 10)[0] == "FailsAtStart"
    assert cannot_start(make_state(well=0, running=1, failures=(message,))) == ""
    assert cannot_start(make_state(well=0, failures=(message, "rank 0 was ended by SIGTERM"))) == ""
    quoted = "rank 1 failed with exit code 1:\nValueError: rank 1 failed; it cannot start"
    assert cannot_start(make_state(well=0, failures=(quoted,))) == ""


def test_what_an_agent_met_is_distinguished_from_what_its_ranks_wrote() -> None:
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    waited = "DistStoreError: wait timeout after 60000ms, keys: /x.1/torchelastic/role_info/0"
    assert was_refused(closed)
    assert lost_peer(f"Traceback ...\ntorch.distributed.{waited}")
    assert not lost_peer("DistStoreError: wait timeout after 60000ms, keys: /mine")
    for of_rank in ("rank 1 failed with exit code 1:\n", "ChildFailedError:\n"):
        assert not was_refused(of_rank + closed)
        assert not lost_peer(of_rank + waited)
