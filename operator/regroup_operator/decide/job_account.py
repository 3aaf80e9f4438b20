"""The account of a job's time and losses, which goodput is computed from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from regroup_operator.api.status import (
    LEDGER_PHASES,
    GoodputStatus,
    LedgerStatus,
    Restarts,
    TrainingJobStatus,
)
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.ledger import Cause, GpuUse, Ledger

MOST_STORED = 2**31 - 1
"""Of a count in the status."""


def account_fields(ledger: Ledger) -> dict[str, object]:
    """The fields of the status that the account fills."""
    return {
        "ledger": LedgerStatus(
            seconds={phase: _rounded(value) for phase, value in ledger.seconds.items()},
            lost_work_seconds=_rounded(ledger.lost_work_seconds),
            gpu_seconds={use: _rounded(value) for use, value in ledger.gpu_seconds.items()},
            lost_gpu_seconds=_rounded(ledger.lost_gpu_seconds),
        ),
        "goodput": _goodput(ledger),
        "restarts": Restarts.model_validate(ledger.restarts),
        "restart_count": storable(
            sum(count for cause, count in ledger.restarts.items() if cause != "resize")
        ),
    }


def merge_ledgers(status: TrainingJobStatus, report: CoordinatorStatus | None) -> Ledger:
    """The account so far: for each entry the larger one of the status and of the coordinator's
    report.
    """
    stored = Ledger(
        seconds=dict(status.ledger.seconds),
        lost_work_seconds=status.ledger.lost_work_seconds,
        gpu_seconds=_larger_uses(status.ledger.gpu_seconds, {}),
        lost_gpu_seconds=status.ledger.lost_gpu_seconds,
        lost_steps=status.goodput.lost_steps,
        restarts={cause: getattr(status.restarts, cause) for cause in get_args(Cause)},
    )
    if report is None:
        return stored
    fresh = report.ledger
    return Ledger(
        seconds=_larger(stored.seconds, fresh.seconds),
        lost_work_seconds=max(stored.lost_work_seconds, fresh.lost_work_seconds),
        gpu_seconds=_larger_uses(stored.gpu_seconds, fresh.gpu_seconds),
        lost_gpu_seconds=max(stored.lost_gpu_seconds, fresh.lost_gpu_seconds),
        lost_steps=max(stored.lost_steps, fresh.lost_steps),
        restarts={
            cause: max(count, fresh.restarts.get(cause, 0))
            for cause, count in stored.restarts.items()
        },
    )


def _larger(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """A coordinator of another release may name other phases: what is stored goes first, while all
    fit.
    """
    phases = [*one, *(key for key in sorted(other) if key not in one)][:LEDGER_PHASES]
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in sorted(phases)}


def _larger_uses(one: Mapping[Any, float], other: Mapping[Any, float]) -> dict[GpuUse, float]:
    known: tuple[GpuUse, ...] = get_args(GpuUse)
    uses = [use for use in known if use in one or use in other]
    return {use: max(one.get(use, 0.0), other.get(use, 0.0)) for use in uses}


def _goodput(ledger: Ledger) -> GoodputStatus:
    seconds = ledger.seconds

    def total(*phases: str) -> float:
        return _rounded(sum(seconds.get(phase, 0.0) for phase in phases))

    return GoodputStatus(
        productive_seconds=_rounded(max(0.0, seconds.get("step", 0.0) - ledger.lost_work_seconds)),
        startup_seconds=total("startup"),
        recovery_seconds=_rounded(
            total("rendezvous", "checkpoint_restore", "idle") + ledger.lost_work_seconds
        ),
        checkpoint_seconds=total("checkpoint_save"),
        waiting_seconds=total("pending", "data_wait"),
        lost_steps=storable(ledger.lost_steps),
        ratio=round(ledger.goodput_ratio, 4),
    )


def storable(count: int) -> int:
    """A count as the status holds it: a script's steps may be more."""
    return min(count, MOST_STORED)


def _rounded(value: float) -> float:
    return round(value, 3)
