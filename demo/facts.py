"""The observed facts of one demo. The checks and the summary use nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regroup_trainer.checkpoint.history import CommittedStep

Losses = tuple[float | None, ...]
"""The loss of each committed step; None where it was not finite."""


@dataclass(frozen=True)
class NodeLoss:
    """The loss of a node, from the power cut to the first new step."""

    node: str
    """The node that held rank 0."""
    coordinator_node: str
    cut_at: float
    """When the power was cut. All times are seconds since the epoch, by this machine's clock."""
    last_step: int
    """The last step that was committed before the power cut."""
    newest_checkpoint: int
    """Step of the newest checkpoint on the volume at the power cut."""
    detected: float
    """When the coordinator announced the next generation."""
    ready_at_detection: bool
    """Whether Kubernetes still reported the node as Ready when training had resumed."""
    resumed: float
    """When the next generation committed its first step."""
    resumed_from: int
    """The number of completed steps in the state that the next generation started from."""

    @property
    def detect_seconds(self) -> float:
        """Seconds from the power cut to the announcement of the next generation."""
        return self.detected - self.cut_at

    @property
    def down_seconds(self) -> float:
        """Seconds from the power cut to the first new committed step."""
        return self.resumed - self.cut_at


@dataclass(frozen=True)
class Facts:
    """The facts of a whole demo."""

    cluster: str
    loss_of_node: NodeLoss
    status: dict[str, Any]
    """The TrainingJob's status at the end."""
    total_steps: int
    world_sizes: tuple[int, ...]
    """World sizes over the committed steps, without consecutive repeats."""
    losses: Losses
    """The loss of every committed step."""
    reference: Losses
    """The losses of the undisturbed run."""
    problems: tuple[str, ...]
    """A sentence for each error that the audit of the committed steps found."""
    kubernetes_version: str | None
    wall_seconds: float

    @property
    def completed(self) -> bool:
        """Whether the job reports Complete and all its steps are on the volume."""
        conditions = {one["type"]: one["status"] for one in self.status.get("conditions", ())}
        return conditions.get("Complete") == "True" and len(self.losses) == self.total_steps

    @property
    def max_loss_difference(self) -> float:
        """The largest relative difference to the undisturbed run over all steps."""
        return max_difference(self.losses, self.reference)

    @property
    def recovery(self) -> dict[str, Any]:
        """The recovery from the node's loss in the job's status. Empty when there is none."""
        own = (
            one for one in self.status.get("recoveries", ()) if one.get("cause") == "infrastructure"
        )
        return next(own, {})


def max_difference(ours: Losses, theirs: Losses) -> float:
    """The largest relative difference between the losses of two runs, over all steps.

    Infinite when there is no step, a step without a loss, or a step that only one run has.
    """
    if len(ours) != len(theirs) or not ours:
        return float("inf")
    return max(relative(our, their) for our, their in zip(ours, theirs, strict=True))


def relative(ours: float | None, theirs: float | None) -> float:
    """|ours - theirs| / |theirs|."""
    if ours is None or theirs is None:
        return float("inf")
    return abs(ours - theirs) / abs(theirs)


def world_sizes_of(committed: Iterable[CommittedStep]) -> tuple[int, ...]:
    """The world sizes in order, without consecutive repeats."""
    return tuple(size for size, _ in itertools.groupby(step.world for step in committed))
