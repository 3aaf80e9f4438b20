"""What happened in the demo, as it was seen from outside; checks and summary are made of this alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regroup_trainer.history import CommittedStep


@dataclass(frozen=True)
class Loss:
    """The loss of a node, from the plug being pulled to training going on."""

    node: str
    """The node that held rank 0."""
    coordinator_node: str
    pulled: float
    """When the plug was pulled; all times are seconds since the epoch, by this machine's clock."""
    last_step: int
    """The last step committed before."""
    newest_checkpoint: int
    """On the volume when the plug was pulled."""
    detected: float
    """When the next generation was announced."""
    ready_at_detection: bool
    """Whether Kubernetes still called the node Ready when training already went on."""
    resumed: float
    """When the next generation had committed its first step."""
    resumed_from: int
    """The step that its first state had completed."""

    @property
    def detect_seconds(self) -> float:
        """From the plug to the next generation being announced."""
        return self.detected - self.pulled

    @property
    def down_seconds(self) -> float:
        """From the plug to the first newly committed step."""
        return self.resumed - self.pulled


@dataclass(frozen=True)
class Facts:
    """A whole demo."""

    cluster: str
    loss_of_node: Loss
    status: dict[str, Any]
    """The TrainingJob's status at the end."""
    total_steps: int
    worlds: tuple[int, ...]
    """Sizes of the world over the committed steps, repetitions left out."""
    losses: tuple[float | None, ...]
    """Of every committed step."""
    reference: tuple[float | None, ...]
    """The same of the undisturbed run."""
    problems: tuple[str, ...]
    """What the audit of the committed steps found."""
    kubernetes_version: str | None
    wall_seconds: float

    @property
    def completed(self) -> bool:
        """Whether the job says so and all its steps are on the volume."""
        conditions = {one["type"]: one["status"] for one in self.status.get("conditions", ())}
        return conditions.get("Complete") == "True" and len(self.losses) == self.total_steps

    @property
    def max_loss_difference(self) -> float:
        """The largest relative difference to the undisturbed run over all steps; infinite where one has no value."""
        if len(self.losses) != len(self.reference) or not self.losses:
            return float("inf")
        return max(relative(ours, theirs) for ours, theirs in zip(self.losses, self.reference, strict=True))

    @property
    def recovery(self) -> dict[str, Any]:
        """The job's own record of the node's loss; empty when it has none."""
        own = (one for one in self.status.get("recoveries", ()) if one.get("cause") == "infrastructure")
        return next(own, {})


def relative(ours: float | None, theirs: float | None) -> float:
    """|ours - theirs| / |theirs|."""
    if ours is None or theirs is None:
        return float("inf")
    return abs(ours - theirs) / abs(theirs)


def worlds_of(committed: Iterable[CommittedStep]) -> tuple[int, ...]:
    """The sizes of the world in order, repetitions left out."""
    return tuple(size for size, _ in itertools.groupby(step.world for step in committed))
