"""The ledger of a job's time and losses, and the records of its recoveries. Pure.

The ledger splits the wall time of the job into phases. Rank 0 reports its own split since its state
was restored. The coordinator adds what no rank can measure:

- pending: the wait for workers,
- idle: from the end of a generation to the begin of the next, and while one stands still,
- step: the time of a program that reports no steps (`State.book`),
- startup (the first time) or rendezvous (later): from there to the restored state, without
  checkpoint_restore, which the rank reports.

The time of the GPUs is split by use. A loss shows when steps have been counted as useful already,
and counters must not fall: so as much of the steps that follow, which are done again, counts as
lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from regroup_trainer.coordinator.current_generation import GenerationEnd, LastCommit
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, RestoredFrom
from regroup_trainer.protocol.job_status import Recovery
from regroup_trainer.protocol.ledger import FAILURES, Cause, GpuUse, Ledger
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import Progress, Restored

MOST_RECOVERIES = 10
DETECTION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
"""Upper bounds in seconds. A last bucket has what took longer."""


class Account:
    """The ledger as it grows. Its numbers never fall."""

    def __init__(self, seed: Ledger, now: float) -> None:
        self._seconds = dict(seed.seconds)
        self._restarts: Counter[Cause] = Counter(seed.restarts)
        self._lost_steps = seed.lost_steps
        self._lost_work_seconds = seed.lost_work_seconds
        self._gpu_seconds: dict[GpuUse, float] = dict.fromkeys(get_args(GpuUse), 0.0)
        self._gpu_seconds.update(seed.gpu_seconds)
        self._lost_gpu_seconds = seed.lost_gpu_seconds
        self._reported: Mapping[str, float] = {}
        self._ahead = 0.0
        """Seconds of this generation that are booked before rank 0 has reported them."""
        self._until = now

    def merge(self, seed: Ledger) -> None:
        """Take over what another coordinator of this job has counted beyond ours."""
        for phase, seconds in seed.seconds.items():
            self._seconds[phase] = max(seconds, self._seconds.get(phase, 0.0))
        for cause, count in seed.restarts.items():
            self._restarts[cause] = max(count, self._restarts[cause])
        self._lost_steps = max(seed.lost_steps, self._lost_steps)
        self._lost_work_seconds = max(seed.lost_work_seconds, self._lost_work_seconds)
        for use, gpu_seconds in seed.gpu_seconds.items():
            self._gpu_seconds[use] = max(gpu_seconds, self._gpu_seconds[use])
        self._lost_gpu_seconds = max(seed.lost_gpu_seconds, self._lost_gpu_seconds)

    def spend(self, phase: str, now: float, gpus: int, training: int = 0) -> None:
        """Book the time since the last booking on `phase`; the job had so many GPUs meanwhile, and
        trained on so many of them.
        """
        self._add(phase, now - self._until, Gpus(gpus, training))
        self._until = max(now, self._until)

    def stand_still(self, now: float, gpus: int) -> None:
        """Book the time since the last booking as idle, although rank 0 may still report what it
        did meanwhile.
        """
        self._ahead += max(0.0, now - self._until)
        self.spend("idle", now, gpus)

    def restored(self, first: bool, restore_seconds: float, now: float, gpus: int) -> None:
        """Book the time from Begin to the restored state."""
        restore = min(max(0.0, restore_seconds), now - self._until)
        self._add("checkpoint_restore", restore, Gpus(gpus))
        self._until += restore
        self.spend("startup" if first else "rendezvous", now, gpus)
        self._reported, self._ahead = {}, 0.0

    def adopt(self, progress: Progress | None, now: float) -> None:
        """Go on with a generation that another coordinator has accounted for so far."""
        self._reported = progress.seconds if progress else {}
        self._ahead = 0.0
        self._until = now

    def progress(self, seconds: Mapping[str, float], now: float, gpus: Gpus) -> None:
        """Book the seconds that rank 0 has added since its last report of this generation."""
        for phase, value in seconds.items():
            added = max(0.0, value - self._reported.get(phase, 0.0))
            known = min(added, self._ahead)
            self._ahead -= known
            self._add(phase, added - known, gpus)
        self._reported, self._ahead = dict(seconds), 0.0
        self._until = now

    def lost(self, steps: int, seconds: float, gpus: int) -> None:
        """Book steps that must be done again, the seconds they took, and the GPUs."""
        self._lost_steps += max(0, steps)
        self._lost_work_seconds += max(0.0, seconds)
        self._lost_gpu_seconds += max(0.0, seconds) * gpus

    def restart(self, cause: Cause) -> None:
        """Count a generation that ended for this cause."""
        self._restarts[cause] += 1

    def catch_up(self, failures: int) -> int:
        """Count generations that ended in a failure until there are so many. Returns how many of
        them nobody had reported.
        """
        missing = max(0, failures - self._failures)
        self._restarts["infrastructure"] += missing
        return missing

    def failures(self, before: int, end: GenerationEnd | None) -> int:
        """Generations of this job that ended in a failure, the one that ended with `end` included;
        `before` were known when it began.

        The ledger that a new coordinator starts with may be some seconds old.
        """
        return max(self._failures, before + (end is not None and end.cause in FAILURES))

    @property
    def _failures(self) -> int:
        """Restarts counted so far that were failures."""
        return sum(self._restarts[cause] for cause in FAILURES)

    @property
    def counts(self) -> tuple[int, int]:
        """Lost steps and restarts so far. They change with each that is counted."""
        return self._lost_steps, self._restarts.total()

    def used(self, cause: Cause) -> int:
        """Restarts counted so far."""
        return self._restarts[cause]

    def ledger(self) -> Ledger:
        """The account so far."""
        return Ledger(
            seconds=dict(self._seconds),
            lost_work_seconds=self._lost_work_seconds,
            gpu_seconds=dict(self._gpu_seconds),
            lost_gpu_seconds=self._lost_gpu_seconds,
            lost_steps=self._lost_steps,
            restarts={cause: count for cause, count in self._restarts.items() if count},
        )

    def _add(self, phase: str, seconds: float, gpus: Gpus) -> None:
        seconds = max(0.0, seconds)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        steps = seconds * gpus.training if phase == "step" else 0.0
        again = min(steps, max(0.0, self._lost_gpu_seconds - self._gpu_seconds["lost"]))
        self._gpu_seconds["lost"] += again
        self._gpu_seconds["useful"] += steps - again
        self._gpu_seconds["waiting"] += max(0.0, seconds * gpus.held - steps)


@dataclass(frozen=True)
class Gpus:
    """The GPUs of the workers that are connected."""

    held: int
    training: int = 0
    """Those of them that a rank trains on; spares wait."""


@dataclass(frozen=True)
class Loss:
    """Steps that were committed, and are to be done again."""

    steps: int
    unflushed: int
    """Those of them that were reported, but are not in the history on the volume."""


def loss_of(report: Restored, before: LastCommit | None) -> Loss:
    """What rank 0's restored state lacks of all that is known to have been committed.

    A report may be behind the history, and the history behind a report: each knows a part.
    """
    reported = before.step if before else 0
    history = report.history_end
    if history is None:
        return Loss(max(0, reported - report.step), 0)
    committed = max(reported, history.step)
    unwritten = reported - max(history.written_step, report.step)
    return Loss(max(0, committed - report.step), max(0, unwritten))


@dataclass
class DetectionTimes:
    """How long it took to detect the failures of one cause: as many numbers, however many."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DETECTION_BUCKETS) + 1))
    """Of each bucket alone."""
    seconds: float = 0.0
    """All together."""

    def add(self, seconds: float) -> None:
        """A failure was detected so long after its last sign of life."""
        self.counts[bisect_left(DETECTION_BUCKETS, seconds)] += 1
        self.seconds += seconds


class Recoveries:
    """The newest records of recoveries. Later reports complete the last one."""

    def __init__(self) -> None:
        self._records: deque[Recovery] = deque(maxlen=MOST_RECOVERIES)

    def records(self) -> tuple[Recovery, ...]:
        """Oldest first."""
        return tuple(self._records)

    def open(
        self,
        end: GenerationEnd,
        wall: float,
        following: GenerationRecord,
        world_size_before: int,
        restored_from: RestoredFrom,
    ) -> None:
        """A generation ended at wall time `wall`, and `following` takes its place."""
        place = end.place
        self._records.append(
            Recovery(
                sequence=following.number.n,
                time=wall,
                cause=end.cause,
                restored_from=restored_from,
                generation=following.number,
                member=place.member if place else "",
                pod=place.pod if place else "",
                node=place.node if place else "",
                exit_code=end.exit.exit_code if end.exit else None,
                message=end.message[:TEXT_LIMIT],
                detect_seconds=end.detect_seconds,
                world_size_before=world_size_before,
                world_size_after=following.world_size,
            )
        )

    def open_unseen(self, following: GenerationRecord, known: LastKnown) -> None:
        """`following` began under a coordinator that died or was cut off before anybody had read
        why: all that is known is of before. Once for each.
        """
        if not self.opened(following.number):
            why = f"a coordinator that died or was cut off saw: {following.reason}"
            end = GenerationEnd(known.time, "infrastructure", why)
            self.open(end, known.time, following, known.world_size, following.restored_from)

    def restored(self, report: Restored, loss: Loss) -> None:
        """The following generation has its state, and is to do the lost steps again."""
        served: dict[str, object] = {}
        if report.restored_from:
            served["restored_from"] = report.restored_from
        if self.opened(report.generation) and not self._records[-1].world_size_before:
            served["world_size_before"] = report.history_end.world_size if report.history_end else 0
        self._amend(
            report.generation,
            lost_steps=loss.steps,
            unflushed_steps=loss.unflushed,
            resumed_from_step=report.step,
            **served,
        )

    def record_of(self, generation: GenerationNumber) -> Recovery | None:
        """The record of this following generation; None: there is none any more."""
        return next((one for one in self._records if one.generation == generation), None)

    def opened(self, generation: GenerationNumber) -> bool:
        """Whether the newest record is of this following generation."""
        return bool(self._records) and self._records[-1].generation == generation

    def first_step(self, report: Progress, before: LastCommit | None) -> Recovery | None:
        """The following generation has committed a step; returns the completed record."""
        down = max(0.0, report.time - before.time) if before else None
        return self._amend(report.generation, down_seconds=down)

    def _amend(self, generation: GenerationNumber, **changes: object) -> Recovery | None:
        if not self.opened(generation):
            return None
        self._records[-1] = self._records[-1].model_copy(update=changes)
        return self._records[-1]
