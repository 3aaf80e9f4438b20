"""Projects what was observed into the status: phase, conditions, progress, recoveries, goodput, message. Pure.

Only what can be derived again is computed here; what the planner must remember (terms, incarnations, handled pods,
suspects) it changes itself, and the functions here pass it on.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import get_args

from regroup_operator import names, torchrun_status
from regroup_operator.api import (
    CheckpointStatus,
    GoodputStatus,
    LedgerStatus,
    Phase,
    ProgressStatus,
    RecoveryStatus,
    Restarts,
    Straggler,
    TrainingJobStatus,
    WorkerStatus,
)
from regroup_operator.conditions import conditions
from regroup_operator.observed import Job, Observed, Pod, format_time
from regroup_operator.plan import MESSAGE_LIMIT, Situation
from regroup_operator.problems import coordinator_problem, image_problem, unschedulable
from regroup_trainer.contract import Cause, Ledger
from regroup_trainer.job_status import CoordinatorPhase, CoordinatorStatus, Recovery

RECOVERIES_KEPT = 10
WORKERS_SHOWN = 64
THROTTLED = frozenset({"progress", "goodput", "ledger", "message"})
"""Fields that change with every step; alone they are written only now and then."""


def project(
    job: Job, observed: Observed, remembered: TrainingJobStatus, situation: Situation, now: datetime
) -> TrainingJobStatus:
    """The status to write. `remembered` is the former one with what the planner must not forget."""
    answer = observed.coordinator.status
    live = [pod for pod in observed.workers if pod.alive]
    ledger = merge_ledgers(remembered, answer)
    changes: dict[str, object] = {
        "observed_generation": job.generation,
        "replicas": len(live),
        "selector": names.selector(job.name, names.WORKER),
        "workers": tuple(_worker(pod, answer) for pod in observed.workers[:WORKERS_SHOWN]),
        "ledger": LedgerStatus(
            seconds={phase: _rounded(value) for phase, value in ledger.seconds.items()},
            lost_work_seconds=_rounded(ledger.lost_work_seconds),
        ),
        "goodput": _goodput(ledger),
        "restarts": Restarts.model_validate(ledger.restarts),
        "restart_count": sum(count for cause, count in ledger.restarts.items() if cause != "resize"),
        **(torchrun_status.world(job, observed, remembered) if job.launcher == "torchrun" else _world(answer, live)),
    }
    if answer is not None:
        changes["recoveries"] = _merge_recoveries(remembered.recoveries, answer.recoveries)
        changes["checkpoint"] = _checkpoint(answer) or remembered.checkpoint
        changes["progress"] = _progress(answer) or remembered.progress
        changes["stragglers"] = tuple(
            Straggler(rank=slow.rank, node=slow.node, percent=slow.percent)
            for slow in answer.stragglers[:WORKERS_SHOWN]
        )
    if situation.ending is not None and remembered.completion_time is None:
        changes["completion_time"] = format_time(now)
    status = remembered.model_copy(update=changes)
    status = status.model_copy(update={"phase": phase_of(job, status, observed, situation)})
    status = status.model_copy(update={"message": message_of(job, status, observed, situation)[:MESSAGE_LIMIT]})
    return status.model_copy(update={"conditions": conditions(job, observed, status, situation, now)})


# --- phase and message -----------------------------------------------------------------------------------------------

_PHASES: dict[CoordinatorPhase, Phase] = {
    "starting": "Starting",
    "running": "Running",
    "recovering": "Recovering",
    "resizing": "Resizing",
    "stopping": "Resizing",
    "suspended": "Resizing",
    "completed": "Running",
    "failed": "Recovering",
}


def phase_of(job: Job, status: TrainingJobStatus, observed: Observed, situation: Situation) -> Phase:
    """One word for printing."""
    if situation.ending is not None:
        return "Succeeded" if situation.ending.complete else "Failed"
    if situation.suspension == "suspended":
        return "Suspended"
    if job.launcher == "torchrun":
        return torchrun_status.phase(status, observed)
    answer = observed.coordinator.status
    has_trained = status.world_generation is not None
    if answer is not None:
        if answer.phase == "waiting":
            return "Recovering" if has_trained else "Pending"
        return _PHASES[answer.phase]
    if status.phase in (None, "Suspended") or not status.replicas:
        return "Pending"
    return status.phase


def message_of(job: Job, status: TrainingJobStatus, observed: Observed, situation: Situation) -> str:
    """What the job does now, or why it is not training: the first of these that has something to say."""
    if situation.ending is not None:
        return situation.ending.message
    if situation.suspension == "suspended":
        return "suspended: no pods are held"
    words = (
        situation.blocker.message if situation.blocker else "",
        observed.apply_error,
        image_problem(observed),
        coordinator_problem(observed),
    )
    problem = next((text for text in words if text), "")
    told, works = _told(job, status, observed)
    if works:
        return f"{told}; {problem}" if problem else told
    text = problem or unschedulable(observed) or told
    return f"suspending: {text}" if situation.suspension == "suspending" else text


def _told(job: Job, status: TrainingJobStatus, observed: Observed) -> tuple[str, bool]:
    """What whoever knows says about the job, and whether it does what it should."""
    if job.launcher == "torchrun":
        return torchrun_status.message(job, status, observed), status.phase == "Running"
    answer = observed.coordinator.status
    if answer is None:
        return _silence(observed), False
    return answer.message, answer.phase in ("running", "starting", "stopping")


def _silence(observed: Observed) -> str:
    error = observed.coordinator.error
    return f"no answer from the coordinator: {error}" if error else "waiting for the coordinator's pod"


# --- parts -----------------------------------------------------------------------------------------------------------


def merge_ledgers(status: TrainingJobStatus, answer: CoordinatorStatus | None) -> Ledger:
    """The account so far: the larger of what was written and what the coordinator says, entry by entry."""
    stored = Ledger(
        seconds=dict(status.ledger.seconds),
        lost_work_seconds=status.ledger.lost_work_seconds,
        lost_steps=status.goodput.lost_steps,
        restarts={cause: getattr(status.restarts, cause) for cause in get_args(Cause)},
    )
    if answer is None:
        return stored
    fresh = answer.ledger
    return Ledger(
        seconds=_larger(stored.seconds, fresh.seconds),
        lost_work_seconds=max(stored.lost_work_seconds, fresh.lost_work_seconds),
        lost_steps=max(stored.lost_steps, fresh.lost_steps),
        restarts={cause: max(count, fresh.restarts.get(cause, 0)) for cause, count in stored.restarts.items()},
    )


def _larger(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in sorted({*one, *other})}


def _goodput(ledger: Ledger) -> GoodputStatus:
    seconds = ledger.seconds

    def total(*phases: str) -> float:
        return _rounded(sum(seconds.get(phase, 0.0) for phase in phases))

    return GoodputStatus(
        productive_seconds=_rounded(max(0.0, seconds.get("step", 0.0) - ledger.lost_work_seconds)),
        startup_seconds=total("startup"),
        recovery_seconds=_rounded(total("rendezvous", "checkpoint_restore", "idle") + ledger.lost_work_seconds),
        checkpoint_seconds=total("checkpoint_save"),
        waiting_seconds=total("pending", "data_wait"),
        lost_steps=ledger.lost_steps,
        ratio=round(ledger.goodput_ratio, 4),
    )


def _world(answer: CoordinatorStatus | None, live: list[Pod]) -> dict[str, object]:
    """What is true of the world; without an answer the ranks train on as before, as far as their pods live."""
    if answer is None:
        return {} if live else {"ready_replicas": 0, "ready_spares": 0, "world_size": 0}
    uids = {pod.uid for pod in live}
    in_world = [m for m in answer.members if m.rank is not None and not m.lost and m.member in uids]
    generation = {"world_generation": str(answer.generation)} if answer.generation else {}
    counts = {"ready_replicas": len(in_world), "ready_spares": answer.spares, "world_size": answer.world_size}
    return {**counts, **generation}


def _worker(pod: Pod, answer: CoordinatorStatus | None) -> WorkerStatus:
    members = answer.members if answer else ()
    member = next((m for m in members if m.member == pod.uid and not m.lost), None)
    training = member is not None and member.rank is not None and pod.phase == "Running"
    spare = member is not None and member.rank is None and answer is not None and answer.spares > 0
    state = "Terminating" if pod.terminating else "Training" if training else "Spare" if spare else pod.phase
    rank = member.rank if member else None
    return WorkerStatus(index=max(0, pod.index), pod=pod.name, node=pod.node, state=state, rank=rank)


def _progress(answer: CoordinatorStatus) -> ProgressStatus | None:
    progress = answer.progress
    if progress is None:
        return None
    total = answer.total_steps
    left = max(0, total - progress.step)
    return ProgressStatus(
        step=progress.step,
        total_steps=total,
        epoch=_finite(progress.epoch),
        percentage=min(100, 100 * progress.step // total) if total else 0,
        remaining_seconds=_remaining(answer, left),
        tokens_per_second=_finite(progress.tokens_per_second),
        loss=_finite(progress.loss),
        updated_time=_wall(progress.time),
    )


def _remaining(answer: CoordinatorStatus, steps_left: int) -> int | None:
    progress = answer.progress
    if not progress or not progress.tokens or not progress.step or progress.tokens_per_second <= 0:
        return None
    tokens_per_step = progress.tokens / progress.step
    return min(2**31 - 1, int(steps_left * tokens_per_step / progress.tokens_per_second))


def _checkpoint(answer: CoordinatorStatus) -> CheckpointStatus | None:
    saved = answer.checkpoint
    if saved is None:
        return None
    return CheckpointStatus(
        last_step=saved.step,
        last_time=_wall(saved.time),
        path=saved.path,
        size_bytes=saved.size_bytes,
        seconds=_finite(saved.seconds),
        verified=True,
    )


def _merge_recoveries(stored: tuple[RecoveryStatus, ...], fresh: tuple[Recovery, ...]) -> tuple[RecoveryStatus, ...]:
    by_generation = {recovery.generation: recovery for recovery in stored}
    by_generation |= {str(recovery.generation): _recovery(recovery) for recovery in fresh}
    return tuple(sorted(by_generation.values(), key=lambda recovery: recovery.time)[-RECOVERIES_KEPT:])


def _recovery(recovery: Recovery) -> RecoveryStatus:
    return RecoveryStatus(
        time=_wall(recovery.time),
        cause=recovery.cause,
        rung=recovery.rung,
        generation=str(recovery.generation),
        pod=recovery.pod,
        node=recovery.node,
        exit_code=recovery.exit_code,
        message=recovery.message[:MESSAGE_LIMIT],
        lost_steps=recovery.lost_steps,
        resumed_from_step=recovery.resumed_from_step,
        detect_seconds=_finite(recovery.detect_seconds),
        down_seconds=_finite(recovery.down_seconds),
        world_before=recovery.world_before,
        world_after=recovery.world_after,
    )


def _finite(value: float | None) -> float | None:
    """The API server refuses NaN and infinity."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


def _rounded(value: float) -> float:
    return round(value, 3)


def _wall(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))


def differs(one: TrainingJobStatus, other: TrainingJobStatus, *, ignoring: frozenset[str] = frozenset()) -> bool:
    """Whether two statuses differ in other fields than those."""
    return _without(one, ignoring) != _without(other, ignoring)


def _without(status: TrainingJobStatus, ignored: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in status if name not in ignored}
