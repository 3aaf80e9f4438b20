"""A rank whose publisher is held up after it has checked that no generation is newer."""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.checkpoint import publish, save
from regroup_trainer.checkpoint.layout import Layout, Manifest
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process
from tests.support.waiting import wait_until

STEP = 10
HELD, GO_ON, TRIED = "held", "go-on", "tried"
"""Files in the job's directory: the rank is held up; it may go on; the result, as the file's
content.
"""


def run(assignment: Assignment, channel: Channel) -> int:
    """Rank 0 of the first generation waits between the check and the rename of one save."""
    if assignment.record.number.n == 1 and assignment.rank == 0:
        _hold_up(Path(assignment.record.desired.directory))
    return rank_process.run(assignment, channel)


def _hold_up(directory: Path) -> None:
    give_name, whole = publish.give_name, publish.publish

    def late(layout: Layout, manifest: Manifest, written: Path) -> None:
        if manifest.step == STEP:
            (directory / HELD).touch()
            wait_until("leave to go on", (directory / GO_ON).exists, 250.0, every=0.002)
        give_name(layout, manifest, written)

    def noted(layout: Layout, manifest: Manifest, written: Path) -> None:
        came = "published"
        try:
            whole(layout, manifest, written)
        except Exception as error:
            came = type(error).__name__
            raise
        finally:
            if manifest.step == STEP:
                (directory / TRIED).write_text(came)

    publish.give_name = late  # type: ignore[assignment]
    save.publish = noted  # type: ignore[assignment,attr-defined]
