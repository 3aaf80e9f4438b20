"""What all subjects of the benchmark have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.harness import Goal

STEP_MS = 500
"""Of all ranks at the same time. A rank reports its progress no more often."""
SNAPSHOT_STEPS = 10
"""Steps between two memory snapshots, as by default."""
FORM_SECONDS, RECOVERY_SECONDS, RESYNC_SECONDS = 120.0, 120.0, 60.0
"""What has not come by then does not count as come."""
STEADY_SECONDS, QUICK_STEADY_SECONDS = 10.0, 2.0
STATUSES = 5
ANSWER_SECONDS = 20.0
"""For each status, and for a successor to have taken over."""
START_SECONDS = 120.0
MOST_MIB = 4096
"""A process that needs more is ended, so that the machine is not."""
UNITS = {
    "formed": "count",
    "form_seconds": "s",
    "recovered": "count",
    "recovery_seconds": "s",
    "recovery_cpu_seconds": "s",
    "resynced": "count",
    "resync_seconds": "s",
    "steady_cpu_share": "%",
    "simulation_cpu_share": "%",
    "steps_per_second": "1/s",
    "rss_mb": "MiB",
    "rss_peak_mb": "MiB",
    "megabytes_sent": "MB",
    "status_seconds": "s",
    "heartbeat_lag_p99_seconds": "s",
    "needless_generations": "count",
}
MIB_IN_MB = 1e6 / 2**20
EVENTS = ("formed", "recovered", "resynced")
CAME = dict.fromkeys(EVENTS, Goal(1, at_least=True))
GOALS: Mapping[str, Mapping[str, Goal]] = {
    "agents-1024": {
        **CAME,
        "recovery_seconds": Goal(1),
        "resync_seconds": Goal(2),
        "steady_cpu_share": Goal(15),
        "rss_mb": Goal(200 * MIB_IN_MB),
        "megabytes_sent": Goal(5),
        "heartbeat_lag_p99_seconds": Goal(0.2),
    },
    "agents-4096": {
        **CAME,
        "recovery_seconds": Goal(5),
        "steady_cpu_share": Goal(60),
        "rss_mb": Goal(400 * MIB_IN_MB),
        "megabytes_sent": Goal(20),
    },
}
"""Case -> metric -> goal, on two cores that agents and coordinator share."""


@dataclass(frozen=True)
class ScaleSize:
    """How many agents are played, with how many ranks each, and for how long they train."""

    agents: int
    ranks: int = 8
    steady_seconds: float = STEADY_SECONDS

    @property
    def settle_seconds(self) -> float:
        """For which a recovery counts after the last agent has begun: its ranks report then."""
        return self.steady_seconds / 5

    @classmethod
    def of(cls, case: str) -> ScaleSize:
        """Read agents-16 or agents-16-quick."""
        agents, _, quick = case.removeprefix("agents-").partition("-")
        return cls(int(agents), steady_seconds=QUICK_STEADY_SECONDS if quick else STEADY_SECONDS)
