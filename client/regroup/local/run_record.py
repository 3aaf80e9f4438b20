"""What a local run leaves in its folder about itself, for the web page: its newest status, and how
it has ended. The coordinator's own report is gone with its process. Pure.
"""

from __future__ import annotations

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
    port: int
    """Of the coordinator, on loopback."""
    report: CoordinatorStatus | None = None
    """The newest one, with the recoveries of all coordinators of the run."""
    outcome: Outcome | None = None
    """None until the run has ended, and where it was killed."""
