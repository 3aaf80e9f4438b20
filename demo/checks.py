"""The promises of the demo as a table. Each has a sentence, a condition and figures. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.facts import Facts

DETECT_SECONDS = 3.0
DOWN_SECONDS = 10.0
LOSS_DIFFERENCE = 1e-3
WORLD_SIZES = ((3, 2, 3), (2, 3, 2, 3))
"""A job may begin with two ranks while its third worker still starts."""
LOCAL = "local"
"""The demo without a cluster."""


@dataclass(frozen=True)
class Check:
    """One promise."""

    sentence: str
    holds: Callable[[Facts], bool]
    figures: Callable[[Facts], str]
    of_cluster: bool = False
    """Whether the promise is about nodes. The local mode has none."""


CHECKS = (
    Check(
        "The training completed all its steps",
        lambda facts: facts.completed,
        lambda facts: (
            f"{len(facts.losses)} of {facts.total_steps} steps, phase {facts.status.get('phase')}"
        ),
    ),
    Check(
        "The lost node held rank 0, and the coordinator ran on another node",
        lambda facts: facts.loss_of_node.node != facts.loss_of_node.coordinator_node,
        lambda facts: (
            f"rank 0 on {facts.loss_of_node.node}, coordinator on "
            f"{facts.loss_of_node.coordinator_node}"
        ),
        of_cluster=True,
    ),
    Check(
        f"The loss was detected within {DETECT_SECONDS:g} s",
        lambda facts: 0 <= facts.loss_of_node.detect_seconds <= DETECT_SECONDS,
        lambda facts: f"{facts.loss_of_node.detect_seconds:.2f} s after the power was cut",
    ),
    Check(
        "Kubernetes still reported the node as Ready at that time",
        lambda facts: facts.loss_of_node.ready_at_detection,
        lambda facts: (
            "Ready" if facts.loss_of_node.ready_at_detection else "not Ready: this proves nothing"
        ),
        of_cluster=True,
    ),
    Check(
        f"The next step was committed within {DOWN_SECONDS:g} s",
        lambda facts: 0 <= facts.loss_of_node.down_seconds <= DOWN_SECONDS,
        lambda facts: f"{facts.loss_of_node.down_seconds:.2f} s after the power was cut",
    ),
    Check(
        "Training resumed from the newest checkpoint, or from newer state in memory",
        lambda facts: facts.loss_of_node.resumed_from >= facts.loss_of_node.newest_checkpoint,
        lambda facts: (
            f"step {facts.loss_of_node.resumed_from} from {facts.recovery.get('restoredFrom')}; "
            f"newest on the volume: step {facts.loss_of_node.newest_checkpoint}"
        ),
    ),
    Check(
        "The world size went from three to two and back to three",
        lambda facts: facts.world_sizes in WORLD_SIZES,
        lambda facts: " -> ".join(map(str, facts.world_sizes)),
    ),
    Check(
        f"The loss curve equals that of an undisturbed run (relative difference <= "
        f"{LOSS_DIFFERENCE:g} at every step)",
        lambda facts: facts.max_loss_difference <= LOSS_DIFFERENCE,
        lambda facts: (
            f"largest difference {facts.max_loss_difference:.2g} over {len(facts.losses)} steps"
        ),
    ),
    Check(
        "No sample was trained on twice, or skipped",
        lambda facts: not facts.problems,
        lambda facts: (
            facts.problems[0]
            if facts.problems
            else f"{len(facts.losses)} steps replayed from the history"
        ),
    ),
)


def promises(facts: Facts) -> list[Check]:
    """The promises that apply to the cluster that was used."""
    return [check for check in CHECKS if facts.cluster != LOCAL or not check.of_cluster]


def broken(facts: Facts) -> list[Check]:
    """The promises that do not hold."""
    return [check for check in promises(facts) if not check.holds(facts)]


def summary(facts: Facts) -> dict[str, Any]:
    """The figures of the demo, as `build/demo/summary.json` holds them."""
    lost = facts.loss_of_node
    return {
        "completed": facts.completed,
        "killedNode": lost.node,
        "detectSeconds": round(lost.detect_seconds, 3),
        "downSeconds": round(lost.down_seconds, 3),
        "restoredFrom": facts.recovery.get("restoredFrom"),
        "lostSteps": lost.last_step - lost.resumed_from,
        "resumedFromStep": lost.resumed_from,
        "worldSizes": list(facts.world_sizes),
        "finalLoss": facts.losses[-1] if facts.losses else None,
        "referenceLoss": facts.reference[-1] if facts.reference else None,
        "maxLossDifference": facts.max_loss_difference
        if facts.losses and facts.max_loss_difference < 1e9
        else None,
        "goodput": facts.status.get("goodput", {}).get("ratio"),
        "tokensPerSecond": facts.status.get("progress", {}).get("tokensPerSecond"),
        "kubernetesVersion": facts.kubernetes_version,
        "wallSeconds": round(facts.wall_seconds, 1),
    }
