"""A simulated job whose coordinator exports traces."""

from __future__ import annotations

from dataclasses import dataclass, field

from regroup_trainer.coordinator.effects import Effect
from regroup_trainer.coordinator.serving.traced_generations import TracedGenerations
from regroup_trainer.system.spans import ROOT, Span
from tests.support.coordinator_simulation import Job

IDENTITY = "uid-of-the-job"


@dataclass
class TracedJob(Job):
    """`traces` has what each coordinator has exported so far."""

    traces: list[dict[str, Span]] = field(default_factory=list)
    """By path."""

    def start_coordinator(self, term: int | None = None) -> None:
        """As in any job; its traces are exported."""
        super().start_coordinator(term)
        self.traced = TracedGenerations(
            self.core.state,
            IDENTITY,
            lambda spans: self.traces.append({span.path: span for span in spans}),
            self.now,
        )

    @property
    def newest(self) -> dict[str, Span]:
        """The trace that was exported last."""
        return self.traces[-1]

    @property
    def names(self) -> list[str]:
        """Those of the roots of all traces."""
        return [trace[ROOT].name for trace in self.traces]

    def _do(self, effects: list[Effect]) -> None:
        super()._do(effects)
        self.traced.look(self.now)
