"""The life of a rank process in one generation: the built-in trainer, or a program of the user's own."""

from __future__ import annotations

import sys

from regroup_trainer import script, trainer
from regroup_trainer.channel import Channel
from regroup_trainer.contract import PEER_LOST_EXIT_CODE, Assignment
from regroup_trainer.errors import TrainingError
from regroup_trainer.survivor import lost_its_world
from regroup_trainer.world import tell_loss


def run(assignment: Assignment, channel: Channel) -> int:
    """Be this rank of this generation, in a process that ends with the exit code returned.

    0 after Finished was sent; PEER_LOST_EXIT_CODE when another rank, or the store, went away or a newer generation has
    begun; that of a TrainingError, with its sentence on standard error; what a program of the user's own exits with.
    Other errors are raised.
    """
    live = script.run if assignment.record.desired.script else trainer.run
    try:
        return live(assignment, channel)
    except TrainingError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        if not lost_its_world(error, channel):
            raise
        tell_loss(assignment.rank, error)
        return PEER_LOST_EXIT_CODE
