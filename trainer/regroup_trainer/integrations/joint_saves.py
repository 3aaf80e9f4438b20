"""Checkpoints that all ranks write together: rank 0 makes room, all write, rank 0 declares the
folder whole.
"""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.integrations.stop_agreement import from_rank0, is_rank0, wait_for_all
from regroup_trainer.integrations.whole_folders import WholeFolders, saves_directory


class JointSaves:
    """The checkpoints of this program. All ranks call each method, and at the same place."""

    def __init__(self, keep_last: int) -> None:
        self.folders = WholeFolders(saves_directory(), keep_last)
        self._step = 0

    def newest(self) -> str:
        """The newest whole checkpoint that rank 0 sees; empty: there is none."""
        return from_rank0(str(self.folders.newest() or ""))

    def start(self, step: int) -> None:
        """Delete what interrupted saves have left. The run goes on after this step."""
        self._step = step
        if is_rank0():
            self.folders.delete_interrupted()

    def has(self, step: int) -> bool:
        """Whether the state after this step is the one that was loaded or saved last."""
        return step == self._step

    def begin(self, step: int) -> Path:
        """Where all ranks write the state after this step. The folder is not there yet."""
        if is_rank0():
            self.folders.begin(step)
        wait_for_all()
        return self.folders.of_step(step)

    def publish(self, step: int, best: Path | None = None) -> None:
        """Declare the checkpoint whole once all ranks have written, and delete old ones but the
        best.
        """
        wait_for_all()
        if is_rank0():
            self.folders.publish(self.folders.of_step(step), best)
        wait_for_all()
        self._step = step
