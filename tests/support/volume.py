"""The access of a rank that is alone in its generation to the volume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from regroup_trainer.checkpoint import volume_calls
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import Busy, RankReport, VolumeProblem
from regroup_trainer.recovery import volume_access
from regroup_trainer.recovery.volume_access import VolumeAccess


@dataclass
class NotedReports:
    """What `VolumeAccess` needs of a channel: notes reports; the generation can be ended."""

    reports: list[RankReport] = field(default_factory=list)
    over: bool = False
    lasting: bool = True

    def send(self, report: RankReport) -> None:
        self.reports.append(report)

    @property
    def problems(self) -> list[VolumeProblem]:
        """Those of the volume, as they were reported."""
        waits = [report for report in self.reports if isinstance(report, Busy)]
        return [report.volume for report in waits if report.volume is not None]

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Nobody is called: who needs it asks."""

    def is_over(self) -> bool:
        return self.over


def be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other rank to agree with."""

    def until_all(ready: Callable[[], bool]) -> None:
        while not ready():
            pass

    monkeypatch.setattr(volume_access, "broadcast_from_rank0", lambda action: action())
    monkeypatch.setattr(volume_access, "until_all", until_all)


def wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for the volume and pauses between tries are those of a test."""
    monkeypatch.setattr(volume_access, "_MOMENT_SECONDS", 0.01)
    monkeypatch.setattr(volume_access, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(volume_calls, "_LONGEST_RETRY_SECONDS", 0.02)


def access(record: GenerationRecord, channel: NotedReports | None = None) -> VolumeAccess:
    """The access of rank 0."""
    return VolumeAccess(record, 0, cast(Channel, channel or NotedReports()))
