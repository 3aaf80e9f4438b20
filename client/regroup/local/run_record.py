"""What a local run leaves in its folder about itself, for the web page: its newest status, and how
it has ended. The coordinator's own report is gone with its process. Pure.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome


class RunRecord(BaseModel):
    """One run of a job, from its start to its end."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str
    workers: int
    """As many as are wanted."""
    start: float
    """Wall clock, seconds since the epoch."""
    time: float
    """When this was written, likewise."""
    port: int = 0
    """Of the coordinator, on loopback; 0 where there is none."""
    launcher: Literal["regroup", "torchrun"] = "regroup"
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    """What a pattern has found in the lines of torchrun's ranks; else the report says it."""
    report: CoordinatorStatus | None = None
    """The newest one, with the recoveries of all coordinators of the run. None under torchrun."""
    outcome: Outcome | None = None
    """None until the run has ended, and where it was killed."""

    @property
    def uses_torchrun(self) -> bool:
        """Whether stock torchrun starts the ranks, and no coordinator leads them."""
        return self.launcher == "torchrun"
