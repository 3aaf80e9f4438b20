"""The promises of the demo. Correct facts keep all of them, and each fault breaks its own promise
alone.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from demo.checks import CHECKS, broken, promises, summary
from demo.facts import Facts, NodeLoss


def make_loss(**changes: Any) -> NodeLoss:
    loss = NodeLoss(
        node="n2",
        coordinator_node="n1",
        cut_at=1000.0,
        last_step=71,
        newest_checkpoint=50,
        detected=1002.1,
        ready_at_detection=True,
        resumed=1003.4,
        resumed_from=50,
    )
    return dataclasses.replace(loss, **changes)


def make_facts(loss: NodeLoss | None = None, **changes: Any) -> Facts:
    losses = tuple(5.0 - step / 100 for step in range(100))
    facts = Facts(
        cluster="devcluster",
        loss_of_node=loss or make_loss(),
        status={
            "phase": "Succeeded",
            "conditions": [{"type": "Complete", "status": "True"}],
            "recoveries": [
                {"cause": "resize", "restoredFrom": "Checkpoint"},
                {"cause": "infrastructure", "restoredFrom": "Checkpoint"},
            ],
            "goodput": {"ratio": 0.83},
            "progress": {"tokensPerSecond": 9000.0},
        },
        total_steps=100,
        world_sizes=(3, 2, 3),
        losses=losses,
        reference=losses,
        problems=(),
        kubernetes_version="v1.36.1",
        wall_seconds=123.4,
    )
    return dataclasses.replace(facts, **changes)


def test_a_correct_demo_keeps_all_promises() -> None:
    assert broken(make_facts()) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (make_facts(losses=(5.0,), reference=(5.0,)), "completed all its steps"),
        (make_facts(make_loss(coordinator_node="n2")), "the coordinator ran on another node"),
        (make_facts(make_loss(detected=1003.1)), "detected within 3 s"),
        (make_facts(make_loss(detected=999.0)), "detected within 3 s"),
        (make_facts(make_loss(ready_at_detection=False)), "still reported the node as Ready"),
        (make_facts(make_loss(resumed=1010.5)), "committed within 10 s"),
        (make_facts(make_loss(newest_checkpoint=60)), "newest checkpoint"),
        (make_facts(world_sizes=(3, 2)), "back to three"),
        (make_facts(reference=(4.0,) * 100), "undisturbed run"),
        (make_facts(problems=("step 3 is missing",)), "No sample was trained on twice"),
    ],
)
def test_each_fault_breaks_its_own_promise(facts: Facts, sentence: str) -> None:
    (check,) = broken(facts)
    assert sentence in check.sentence
    assert check.figures(facts)


def test_a_loss_curve_with_a_hole_or_of_another_length_is_not_equal() -> None:
    facts = make_facts()
    assert make_facts(losses=(None, *facts.losses[1:])).max_loss_difference == float("inf")
    assert make_facts(reference=facts.reference[:-1]).max_loss_difference == float("inf")


def test_without_a_cluster_nothing_is_promised_about_nodes() -> None:
    local = make_facts(make_loss(ready_at_detection=False, coordinator_node="n2"), cluster="local")
    assert broken(local) == []
    assert len(promises(local)) == len(CHECKS) - 2


def test_the_summary_has_exactly_the_promised_keys() -> None:
    assert summary(make_facts()) == {
        "completed": True,
        "killedNode": "n2",
        "detectSeconds": 2.1,
        "downSeconds": 3.4,
        "restoredFrom": "Checkpoint",
        "lostSteps": 21,
        "resumedFromStep": 50,
        "worldSizes": [3, 2, 3],
        "finalLoss": pytest.approx(4.01),
        "referenceLoss": pytest.approx(4.01),
        "maxLossDifference": 0.0,
        "goodput": 0.83,
        "tokensPerSecond": 9000.0,
        "kubernetesVersion": "v1.36.1",
        "wallSeconds": 123.4,
    }


def test_the_summary_of_a_failed_demo_is_valid_json() -> None:
    text = json.dumps(summary(make_facts(losses=(), reference=())), allow_nan=False)
    assert json.loads(text)["maxLossDifference"] is None
