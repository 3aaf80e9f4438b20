"""Where the time went and what was lost: the ledger and the recovery records. Pure.

The ledger splits the wall time of the job. Rank 0 reports its own split since its state was restored; the coordinator
adds what no rank can see: waiting for workers (pending), from a break to the next generation (idle), from there to the
restored state (startup at first, rendezvous later; of it checkpoint_restore as the rank measured it).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from regroup_trainer.contract import Cause, GenerationRecord, Ledger, Progress, Restored, Rung
from regroup_trainer.coordinator.world import Break, LastCommit
from regroup_trainer.job_status import Recovery

RECOVERIES_KEPT = 10


class Account:
    """The ledger under way. Its numbers never fall."""

    def __init__(self, seed: Ledger, now: float) -> None:
        self._seconds = dict(seed.seconds)
        self._restarts: Counter[Cause] = Counter(seed.restarts)
        self._lost_steps = seed.lost_steps
        self._lost_work_seconds = seed.lost_work_seconds
        self._reported: Mapping[str, float] = {}
        self._until = now

    def merge(self, seed: Ledger) -> None:
        """Take over what another coordinator of this job had counted beyond ours."""
        for phase, seconds in seed.seconds.items():
            self._seconds[phase] = max(seconds, self._seconds.get(phase, 0.0))
        for cause, count in seed.restarts.items():
            self._restarts[cause] = max(count, self._restarts[cause])
        self._lost_steps = max(seed.lost_steps, self._lost_steps)
        self._lost_work_seconds = max(seed.lost_work_seconds, self._lost_work_seconds)

    def spend(self, phase: str, now: float) -> None:
        """Book the time since the last booking."""
        self._add(phase, now - self._until)
        self._until = now

    def restored(self, first: bool, restore_seconds: float, now: float) -> None:
        """Book the time from Begin to the restored state."""
        restore = min(max(0.0, restore_seconds), now - self._until)
        self._add("checkpoint_restore", restore)
        self._until += restore
        self.spend("startup" if first else "rendezvous", now)
        self._reported = {}

    def adopt(self, progress: Progress | None, now: float) -> None:
        """Go on from a world that another coordinator has accounted for so far."""
        self._reported = progress.seconds if progress else {}
        self._until = now

    def progress(self, seconds: Mapping[str, float], now: float) -> None:
        """Book what rank 0 has reported since its last report of the same generation."""
        for phase, value in seconds.items():
            self._add(phase, value - self._reported.get(phase, 0.0))
        self._reported = dict(seconds)
        self._until = now

    def lost(self, steps: int, seconds: float) -> None:
        """Book steps that have to be done again."""
        self._lost_steps += max(0, steps)
        self._lost_work_seconds += max(0.0, seconds)

    def restart(self, cause: Cause) -> None:
        """Count a restart."""
        self._restarts[cause] += 1

    def used(self, cause: Cause) -> int:
        """Restarts counted so far."""
        return self._restarts[cause]

    def ledger(self) -> Ledger:
        """The account so far."""
        return Ledger(
            seconds=dict(self._seconds),
            lost_work_seconds=self._lost_work_seconds,
            lost_steps=self._lost_steps,
            restarts={cause: count for cause, count in self._restarts.items() if count},
        )

    def _add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + max(0.0, seconds)


class Recoveries:
    """The newest recovery records; the last one is completed by the reports that follow."""

    def __init__(self) -> None:
        self._kept: deque[Recovery] = deque(maxlen=RECOVERIES_KEPT)

    def records(self) -> tuple[Recovery, ...]:
        """Oldest first."""
        return tuple(self._kept)

    def open(self, what: Break, wall: float, following: GenerationRecord, world_before: int, rung: Rung) -> None:
        """A world broke (or was ended for another) at wall time `wall`, and `following` takes its place."""
        place = what.place
        self._kept.append(
            Recovery(
                sequence=following.number.n,
                time=wall,
                cause=what.cause,
                rung=rung,
                generation=following.number,
                member=place.member if place else "",
                pod=place.pod if place else "",
                node=place.node if place else "",
                exit_code=what.exit.exit_code if what.exit else None,
                message=what.message,
                detect_seconds=what.detect_seconds,
                world_before=world_before,
                world_after=following.world_size,
            )
        )

    def restored(self, report: Restored, before: LastCommit | None) -> int:
        """The state of the following generation is in place; returns how many steps must be done again."""
        lost = max(0, before.step - report.step) if before else 0
        served = {"rung": report.rung} if report.rung else {}
        self._amend(report.generation, lost_steps=lost, resumed_from_step=report.step, **served)
        return lost

    def first_step(self, report: Progress, before: LastCommit | None) -> Recovery | None:
        """The first step after it was committed; returns the completed record."""
        down = max(0.0, report.time - before.time) if before else None
        return self._amend(report.generation, down_seconds=down)

    def _amend(self, generation: object, **changes: object) -> Recovery | None:
        if not self._kept or self._kept[-1].generation != generation:
            return None
        self._kept[-1] = self._kept[-1].model_copy(update=changes)
        return self._kept[-1]
