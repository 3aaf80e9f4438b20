"""What can go wrong in a rank, by what its agent should make of it.

A `TrainingError` is the user's to repair: its message names the field or file, the value and what to do, and the rank
ends with its exit code: 1 where another try, perhaps elsewhere, may succeed, 2 where it cannot. A `GenerationOverError`
is nobody's fault here: the rank ends with PEER_LOST_EXIT_CODE and another generation follows.
"""

from __future__ import annotations

from typing import Literal

Stage = Literal["write", "publish", "prune"]
"""Of a save: the ranks write, rank 0 publishes, rank 0 deletes old ones."""


class TrainingError(Exception):
    """Base of errors whose message is all that the user needs."""

    exit_code = 1


class ConfigurationError(TrainingError):
    """The configuration asks for what this trainer cannot do, or contradicts the checkpoint to resume from."""

    exit_code = 2


class DataError(TrainingError):
    """The samples are missing or too few."""


class StorageError(TrainingError):
    """The job's directory cannot be used, or could not take the last checkpoint."""


class CheckpointError(TrainingError):
    """No checkpoint can be used though there should be one."""

    exit_code = 2


class NonFiniteError(TrainingError):
    """The loss is not a number any more, and the run shall not go on like that."""

    exit_code = 2


class CommitError(TrainingError):
    """The ranks disagree on a step: a bug or damaged memory, never a user's mistake."""


class SaveError(Exception):
    """A checkpoint could not be saved; raised by all ranks alike. Training can go on without it."""

    def __init__(self, stage: Stage, error: str) -> None:
        super().__init__(stage, error)  # as they are, so that it pickles
        self.stage = stage
        self.error = error

    def __str__(self) -> str:
        return f"{self.stage}: {self.error}"


class GenerationOverError(Exception):
    """The generation is over: a peer went away, or a newer generation has begun."""


class FencedError(GenerationOverError):
    """A newer generation has begun; whatever this one still does must not count."""
