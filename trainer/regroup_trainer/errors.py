"""What can go wrong in a rank, and what its agent does then.

A `TrainingError` is for the user to repair. Its message names the field or file, the value and what
to do. The rank ends with its exit code: 1 where another attempt may succeed, 2 where it cannot.
After a `GenerationOverError` the rank ends with PEER_LOST_EXIT_CODE, and another generation
follows.
"""

from __future__ import annotations

from typing import Literal

Stage = Literal["write", "publish", "prune"]
"""The stage of a save: all ranks write, rank 0 publishes, rank 0 deletes old ones."""


class TrainingError(Exception):
    """Base of errors whose message is all that the user needs."""

    exit_code = 1


class ConfigurationError(TrainingError):
    """The configuration asks for something that is not possible, or contradicts the checkpoint to
    resume from.
    """

    exit_code = 2


class DataError(TrainingError):
    """The samples are missing or too few."""


class StorageError(TrainingError):
    """The job's directory cannot be used, or could not take the last checkpoint."""


class CheckpointError(TrainingError):
    """No checkpoint can be used though there should be one."""

    exit_code = 2


class PortTakenError(TrainingError):
    """Another process was quicker to take the port that was chosen for the program's own store."""

    exit_code = 77


class NonFiniteError(TrainingError):
    """The loss is not finite, and the run has to stop."""

    exit_code = 2


class CommitError(TrainingError):
    """The ranks disagree on a step. The cause is a bug or damaged memory, never the user."""


class SaveError(Exception):
    """A checkpoint could not be saved; raised on all ranks. Training can continue without it."""

    def __init__(self, stage: Stage, error: str) -> None:
        super().__init__(stage, error)  # positional arguments, so that the error pickles
        self.stage = stage
        self.error = error

    def __str__(self) -> str:
        return f"{self.stage}: {self.error}"


class GenerationOverError(Exception):
    """The generation is over: a peer went away, or a newer generation has begun."""


class FencedError(GenerationOverError):
    """A newer generation has begun; nothing that this one still does may count."""


class ProgramRestartError(GenerationOverError):
    """This process cannot go on in the generation; a new process of the program can."""
