"""What a job left on its volume, seen from outside: the demo's evidence, independent of the job's status."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer import history
from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import MANIFEST, Layout, generation_of, published_step
from regroup_trainer.contract import GenerationNumber
from regroup_trainer.history import CommittedStep

CLAIM = re.compile(r"(\d+)-(\d+)\.claim")


@dataclass(frozen=True)
class Written:
    """A generation's last committed step."""

    generation: GenerationNumber
    step: int
    world: int
    loss: float | None
    time: float
    """When it was written, seconds since the epoch."""


@dataclass(frozen=True)
class Volume:
    """A job's directory."""

    folder: Path

    @property
    def layout(self) -> Layout:
        """Its paths."""
        return Layout(self.folder)

    def announced(self) -> dict[GenerationNumber, float]:
        """Numbers reserved by the coordinator and when. It reserves the next one when it announces a generation."""
        found = ((CLAIM.fullmatch(path.name), path) for path in _list(self.layout.lineage))
        return {GenerationNumber(int(m[1]), int(m[2])): path.stat().st_mtime for m, path in found if m}

    def resumed_from(self, generation: GenerationNumber) -> int | None:
        """The step that a generation's first state had completed; None before it has begun."""
        record = lineage.read(self.layout).get(generation)
        return record.resumed_from_step if record else None

    def first_step_after(self, generation: GenerationNumber) -> Written | None:
        """The newest step of the first later generation that has committed any, None while there is none."""
        later = sorted(number for number in self._with_history() if number > generation)
        return next((written for number in later if (written := self._last_of(number))), None)

    def last_step(self, generation: GenerationNumber | None = None) -> Written | None:
        """The newest step of a generation, by default of the newest one that has any."""
        wanted = [generation] if generation else sorted(self._with_history(), reverse=True)
        return next((written for number in wanted if (written := self._last_of(number))), None)

    def newest_checkpoint(self) -> int | None:
        """The highest step with a published checkpoint."""
        names = (path.name for path in _list(self.layout.checkpoints) if (path / MANIFEST).exists())
        return max((step for name in names if (step := published_step(name)) is not None), default=None)

    def committed(self) -> list[CommittedStep]:
        """The steps that count."""
        return history.committed(self.folder)

    def audit(self) -> list[str]:
        """A sentence for each sample that was trained on twice, skipped or out of order."""
        return history.audit(self.folder)

    def _with_history(self) -> list[GenerationNumber]:
        return [number for path in _list(self.layout.history) if (number := generation_of(path.name))]

    def _last_of(self, generation: GenerationNumber) -> Written | None:
        path = self.layout.history_file(generation)
        with contextlib.suppress(FileNotFoundError):
            if found := _last_line(path):
                return Written(generation, found.step, found.world, found.loss, path.stat().st_mtime)
        return None


def _list(folder: Path) -> list[Path]:
    """What is in a folder; nothing while it is not there."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _last_line(path: Path, tail: int = 4096) -> CommittedStep | None:
    """The last whole line of a file that is being written."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - tail))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return CommittedStep.model_validate_json(whole) if whole else None
