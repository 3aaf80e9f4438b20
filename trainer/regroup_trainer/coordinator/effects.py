"""What the coordinator's core wants done. The server does it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.protocol.coordinator_messages import CoordinatorMessage
from regroup_trainer.protocol.generation import GenerationNumber


@dataclass(frozen=True)
class Send:
    """Send `message` to the agent of `member`. It is dropped when that agent is not connected."""

    member: str
    message: CoordinatorMessage


@dataclass(frozen=True)
class Close:
    """Close the connection of `member`, which was declared lost."""

    member: str


@dataclass(frozen=True)
class ReserveNumber:
    """Reserve the first free generation number from `number` on, durably.

    The answer is `Coordinator.on_reserved` or `Coordinator.on_reservation_failed`.
    """

    number: GenerationNumber


@dataclass(frozen=True)
class LookForFormer:
    """Look on the volume for the newest generation of a former term. Without an answer of the
    volume there is none; else it is `Coordinator.on_former`.
    """

    term: int
    """Of this coordinator."""


@dataclass(frozen=True)
class LookForCheckpoint:
    """Look on the volume for the checkpoint of a step. The answer, if the volume gives one, is
    `Coordinator.on_checkpoint_looked_for`.
    """

    request: str
    """For a restart from it."""
    step: int


Effect = Send | Close | ReserveNumber | LookForFormer | LookForCheckpoint
