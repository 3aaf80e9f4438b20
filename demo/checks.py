"""What the demo promises, as a table: a sentence, whether it holds, and the figures. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.facts import Facts

DETECT_SECONDS = 3.0
DOWN_SECONDS = 10.0
LOSS_DIFFERENCE = 1e-3
WORLDS = ((3, 2, 3), (2, 3, 2, 3))
"""A job may begin with two while its third worker still starts."""
LOCAL = "local"
"""The demo without a cluster."""


@dataclass(frozen=True)
class Check:
    """One promise."""

    sentence: str
    holds: Callable[[Facts], bool]
    figures: Callable[[Facts], str]
    of_cluster: bool = False
    """Whether it is about nodes, which the local mode has none of."""


CHECKS = (
    Check(
        "The training completed all its steps",
        lambda facts: facts.completed,
        lambda facts: f"{len(facts.losses)} of {facts.total_steps} steps, phase {facts.status.get('phase')}",
    ),
    Check(
        "The lost node held rank 0, and the coordinator was elsewhere",
        lambda facts: facts.loss_of_node.node != facts.loss_of_node.coordinator_node,
        lambda facts: f"rank 0 on {facts.loss_of_node.node}, coordinator on {facts.loss_of_node.coordinator_node}",
        of_cluster=True,
    ),
    Check(
        f"The loss was detected within {DETECT_SECONDS:g} s",
        lambda facts: 0 <= facts.loss_of_node.detect_seconds <= DETECT_SECONDS,
        lambda facts: f"{facts.loss_of_node.detect_seconds:.2f} s after the plug was pulled",
    ),
    Check(
        "Kubernetes itself still called the node Ready then",
        lambda facts: facts.loss_of_node.ready_at_detection,
        lambda facts: "it did" if facts.loss_of_node.ready_at_detection else "it did not: this proves nothing",
        of_cluster=True,
    ),
    Check(
        f"The next step was committed within {DOWN_SECONDS:g} s",
        lambda facts: 0 <= facts.loss_of_node.down_seconds <= DOWN_SECONDS,
        lambda facts: f"{facts.loss_of_node.down_seconds:.2f} s after the plug was pulled",
    ),
    Check(
        "The restart came from the newest checkpoint, or from memory that was newer",
        lambda facts: facts.loss_of_node.resumed_from >= facts.loss_of_node.newest_checkpoint,
        lambda facts: (
            f"step {facts.loss_of_node.resumed_from} by rung {facts.recovery.get('rung')}; newest on the volume: step "
            f"{facts.loss_of_node.newest_checkpoint}"
        ),
    ),
    Check(
        "The world went from three to two and back to three",
        lambda facts: facts.worlds in WORLDS,
        lambda facts: " -> ".join(map(str, facts.worlds)),
    ),
    Check(
        f"The loss curve is that of an undisturbed run (relative difference <= {LOSS_DIFFERENCE:g} at every step)",
        lambda facts: facts.max_loss_difference <= LOSS_DIFFERENCE,
        lambda facts: f"largest difference {facts.max_loss_difference:.2g} over {len(facts.losses)} steps",
    ),
    Check(
        "No sample was trained on twice, or skipped",
        lambda facts: not facts.problems,
        lambda facts: facts.problems[0] if facts.problems else f"{len(facts.losses)} steps replayed from the history",
    ),
)


def promises(facts: Facts) -> list[Check]:
    """Those that the demo makes where it played."""
    return [check for check in CHECKS if facts.cluster != LOCAL or not check.of_cluster]


def broken(facts: Facts) -> list[Check]:
    """The promises that do not hold."""
    return [check for check in promises(facts) if not check.holds(facts)]


def summary(facts: Facts) -> dict[str, Any]:
    """The demo in figures, as `build/demo/summary.json` keeps it."""
    lost = facts.loss_of_node
    return {
        "completed": facts.completed,
        "killedNode": lost.node,
        "detectSeconds": round(lost.detect_seconds, 3),
        "downSeconds": round(lost.down_seconds, 3),
        "rung": facts.recovery.get("rung"),
        "lostSteps": lost.last_step - lost.resumed_from,
        "resumedFromStep": lost.resumed_from,
        "worldSizes": list(facts.worlds),
        "finalLoss": facts.losses[-1] if facts.losses else None,
        "referenceLoss": facts.reference[-1] if facts.reference else None,
        "maxLossDifference": facts.max_loss_difference if facts.losses and facts.max_loss_difference < 1e9 else None,
        "goodput": facts.status.get("goodput", {}).get("ratio"),
        "tokensPerSecond": facts.status.get("progress", {}).get("tokensPerSecond"),
        "kubernetesVersion": facts.kubernetes_version,
        "wallSeconds": round(facts.wall_seconds, 1),
    }
