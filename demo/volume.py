"""Reads what a job wrote to its volume. This evidence is independent of the job's status."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer.checkpoint import history, lineage
from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.checkpoint.layout import MANIFEST, DataIdentity, Layout, published_step
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import generation_of, reserved_number


@dataclass(frozen=True)
class Written:
    """A generation's last committed step."""

    generation: GenerationNumber
    step: int
    world_size: int
    loss: float | None
    time: float
    """When the step was written, seconds since the epoch."""


@dataclass(frozen=True)
class Volume:
    """A job's directory on the volume."""

    folder: Path

    @property
    def layout(self) -> Layout:
        return Layout(self.folder)

    def announced(self) -> dict[GenerationNumber, float]:
        """The reserved generation numbers and when each was reserved, seconds since the epoch.

        A coordinator reserves the next number when it announces a generation.
        """
        found = ((reserved_number(path.name), path) for path in _list(self.layout.lineage))
        return {number: path.stat().st_mtime for number, path in found if number}

    def resumed_from(self, generation: GenerationNumber) -> int | None:
        """The step from which a generation resumed. None before the generation has begun."""
        record = lineage.read(self.layout).get(generation)
        return record.resumed_from_step if record else None

    def first_step_after(self, generation: GenerationNumber) -> Written | None:
        """The newest step of the first later generation with a committed step. None while there is
        none.
        """
        later = sorted(number for number in self._with_history() if number > generation)
        return next((written for number in later if (written := self._last_of(number))), None)

    def last_step(self, generation: GenerationNumber | None = None) -> Written | None:
        """The newest step of a generation. By default, of the newest generation with a committed
        step.
        """
        candidates = [generation] if generation else sorted(self._with_history(), reverse=True)
        return next((written for number in candidates if (written := self._last_of(number))), None)

    def newest_checkpoint(self) -> int | None:
        """The highest step with a published checkpoint. None when there is none."""
        names = (path.name for path in _list(self.layout.checkpoints) if (path / MANIFEST).exists())
        return max(
            (step for name in names if (step := published_step(name)) is not None), default=None
        )

    def data(self) -> DataIdentity | None:
        """What the newest generation trained on. None before the first has begun."""
        records = lineage.read(self.layout)
        return records[max(records)].data if records else None

    def committed(self) -> list[CommittedStep]:
        """The committed steps of the job's lineage."""
        return history.committed(self.folder)

    def audit(self) -> list[str]:
        """A sentence for each sample that was trained on twice, skipped or out of order."""
        return history.audit(self.folder)

    def _with_history(self) -> list[GenerationNumber]:
        return [
            number for path in _list(self.layout.history) if (number := generation_of(path.name))
        ]

    def _last_of(self, generation: GenerationNumber) -> Written | None:
        path = self.layout.history_file(generation)
        with contextlib.suppress(FileNotFoundError):
            if found := history.last_record(path):
                return Written(
                    generation, found.step, found.world, found.loss, path.stat().st_mtime
                )
        return None


def _list(folder: Path) -> list[Path]:
    """The sorted content of a folder. Empty when the folder does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []
