"""How faults are spelt."""

from __future__ import annotations

import pytest

from regroup.local.faults import Fault, never_injected, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("worker=1@step=50", Fault("worker", 1, 50)),
        ("rank = 0 @ step = 7", Fault("rank", 0, 7)),
        ("coordinator@step=3", Fault("coordinator", 0, 3)),
        ("worker=2@seconds=10", Fault("worker", 2, 10, "seconds")),
        ("rank=0@line=epoch 5 on", Fault("rank", 0, 0, "line", "epoch 5 on")),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        *["", "worker=1", "worker@step=3", "node=1@step=3", "coordinator=0@step=1"],
        *["worker=x@step=1", "worker=\N{ARABIC-INDIC DIGIT ONE}@step=1"],
    ],
)
def test_a_misspelt_fault_shows_how_it_is_spelt(text: str) -> None:
    with pytest.raises(ValueError, match="worker=1@step=50, rank=0@step=50 or coordinator@step=50"):
        parse_fault(text)


def test_faults_that_never_came_are_named() -> None:
    assert never_injected(()) == ""
    assert never_injected([Fault("worker", 1, 50), Fault("rank", 0, 9, "seconds")]).startswith(
        "--kill worker 1 at step 50, --kill rank 0 after 9 s: the run ended first"
    )
