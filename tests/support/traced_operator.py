"""A simulated job whose operator exports spans."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from regroup_operator.api.status import RecoveryStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.controller.operator_traces import OperatorTraces, Round
from regroup_operator.decide.plan import Plan
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.spans import Span
from tests.support.operator_simulation import Simulation, make_spec

UID = "0000aaaa-1111"
"""Of the simulated job."""


@dataclass
class TracedJob(Simulation):
    """A job whose operator exports spans. A round takes a tenth of a second."""

    spans: list[Span] = field(default_factory=list)
    adopted: GenerationNumber | None = None
    """What the coordinator has adopted of a former one."""

    def __post_init__(self) -> None:
        self.traces = OperatorTraces(self.spans.extend)

    def round(self, crash_after: int | None = None) -> Plan:
        observed = self.observed()
        what = super().round(crash_after)
        began = self.now.timestamp()
        self.traces.note(Round(self.job(), observed, what.actions, began, began + 0.1))
        return what

    def recover(self, generation: str) -> None:
        """The coordinator reports that a generation has made its first step after a loss."""
        time = format_time(self.now)
        done = RecoveryStatus(
            time=time, cause="infrastructure", generation=generation, down_seconds=3.0
        )
        recoveries = (*self.status.recoveries, done)
        self.status = self.status.model_copy(update={"recoveries": recoveries})
        self.round()

    def _view(self) -> CoordinatorView:
        view = super()._view()
        if view.status is None or self.adopted is None:
            return view
        return replace(view, status=view.status.model_copy(update={"generation": self.adopted}))


def training(**fields: object) -> TracedJob:
    """A job that trains with its three workers."""
    job = TracedJob(make_spec(**fields))
    job.run_rounds(4)
    return job
