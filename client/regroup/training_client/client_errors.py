"""What the Python client raises, beside ClusterError and TimeoutError. Pure."""

from __future__ import annotations

from regroup_operator.api.status import TrainingJobStatus


class TrainingClientError(Exception):
    """A request cannot be carried out. The message names field, value and what to do."""


class CodeError(TrainingClientError):
    """The function or script cannot be sent."""


class JobFailedError(TrainingClientError):
    """The job that was waited for has failed. The message says why."""

    def __init__(self, name: str, status: TrainingJobStatus) -> None:
        super().__init__(f"job {name} has failed: {status.message or 'see its logs'}")
        self.status = status
        """The last one."""
