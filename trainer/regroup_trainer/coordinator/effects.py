"""What the coordinator's core wants done; the server does it. The core itself touches no socket, file or clock."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.contract import CoordinatorMessage, GenerationNumber


@dataclass(frozen=True)
class Send:
    """Send `message` to the agent of `member`; dropped when it isn't connected."""

    member: str
    message: CoordinatorMessage


@dataclass(frozen=True)
class Close:
    """Close the connection to `member`, which was declared lost."""

    member: str


@dataclass(frozen=True)
class Claim:
    """Reserve the first free number from `number` on, durably. Answered by `Coordinator.claimed`."""

    number: GenerationNumber


Effect = Send | Close | Claim
