"""The main function of a rank process: runs the built-in trainer, or a user's program."""

from __future__ import annotations

from regroup_trainer.errors import TrainingError
from regroup_trainer.parallel.process_group import report_loss
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import script, trainer
from regroup_trainer.rank.joining import is_generation_lost
from regroup_trainer.system.log_lines import rank_log


def run(assignment: Assignment, channel: Channel) -> int:
    """Run this rank until its process has to end; returns the exit code.

    0 after Finished was sent. PEER_LOST_EXIT_CODE when another rank or the store went away, or a
    newer generation has begun. The code of a TrainingError, whose message goes to standard error.
    The exit code of a user's program. Other errors are raised.
    """
    live = script.run if assignment.record.desired.script else trainer.run
    try:
        return live(assignment, channel)
    except TrainingError as error:
        rank_log.error("%s: %s", type(error).__name__, error)
        return error.exit_code
    except Exception as error:
        if not is_generation_lost(error, channel):
            raise
        report_loss(assignment.rank, error)
        return PEER_LOST_EXIT_CODE
