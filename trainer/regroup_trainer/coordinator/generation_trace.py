"""The trace of the way to a generation: from the end of the one before to its first step. Pure.

All times are those of the coordinator's clock. Clocks of agents differ: of them only durations
count, measured back from the arrival of the report that has them, and cut to the time in which they
can have passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Recovery
from regroup_trainer.protocol.ledger import FAILURES
from regroup_trainer.system.spans import ROOT, Span, Value, trace_id

BROKEN = "the generation ended before its first step"


class Departure(NamedTuple):
    """How the ranks left the generation before. Times are monotonic seconds."""

    decided_at: float | None
    """When they were asked for an agreed end; None: they were not."""
    left_at: float | None
    """When the last of them had left, as far as they reported it."""


def departure_of(former: CurrentGeneration) -> Departure:
    """How the ranks of a generation that has ended left it. A failure may have come first."""
    failed = former.failure is not None and former.failure.cause in FAILURES
    is_planned = former.transition is not None and not failed
    return Departure(former.decided_at if is_planned else None, former.left_at)


class Phase(NamedTuple):
    """A part of the way to a generation."""

    path: str
    end: float | None
    """Monotonic seconds; None: it has not come to its end."""


@dataclass(frozen=True)
class TracedGeneration:
    """A generation, and what its trace needs beside it. Times are monotonic seconds."""

    generation: CurrentGeneration
    before: Departure | None
    """None: this coordinator knows of no generation before."""
    since: float
    """When this coordinator began."""
    until: float
    """When the generation was seen to have made a step, or to have ended."""


def trace_of(identity: str, number: GenerationNumber) -> str:
    """Id of the trace of the way to a generation of the job with this identity."""
    return trace_id(identity, str(number))


def spans_of(state: State, identity: str, traced: TracedGeneration) -> tuple[Span, ...]:
    """The spans, the one that has no parent first. What was not reached has none."""
    trace, current = trace_of(identity, traced.generation.number), traced.generation
    start, spans = min(_start(traced), current.begun), []
    at = start
    for phase, end in _phases(traced):
        begun, at = at, min(max(at, traced.until if end is None else end), traced.until)
        broken = BROKEN if end is None else ""
        spans.append(_span(state, trace, phase, (begun, at), _facts(traced, phase), broken))
        if phase == "restore" and end is not None:
            spans += [_span(state, trace, *part, {}) for part in _parts(current, begun, at)]
        if end is None:
            break
    error = next((span.error for span in spans if span.error), "")
    facts = _about(state, current)
    whole = state.wall(start), state.wall(at)
    return (Span(trace, ROOT, _name_of(current), *whole, facts, error), *spans)


def _name_of(current: CurrentGeneration) -> str:
    if current.previous_end is None:
        return "start"
    return "recovery" if current.previous_end.cause in FAILURES else "resize"


def _start(traced: TracedGeneration) -> float:
    """When the last sign of life came, the end was asked for, or this coordinator began."""
    end = traced.generation.previous_end
    if traced.before is None or end is None:
        return traced.since
    if traced.before.decided_at is not None:
        return traced.before.decided_at
    return end.time - max(0.0, end.detect_seconds)


def _phases(traced: TracedGeneration) -> list[Phase]:
    """The parts of the way in their order. Of a program that reports nothing, the last is seen to
    begin only.
    """
    current = traced.generation
    phases = [*_phases_of_end(traced), Phase("form", current.begun)]
    if current.non_reporting:
        return phases
    stepped = current.first_commit_at
    restored = stepped if current.restored_at is None else current.restored_at
    return [*phases, Phase("restore", restored), Phase("first step", stepped)]


def _phases_of_end(traced: TracedGeneration) -> list[Phase]:
    begun, end = traced.generation.begun, traced.generation.previous_end
    if traced.before is None or end is None:
        return []
    left = traced.before.left_at
    if traced.before.decided_at is not None:
        return [Phase("agreed end", begun if left is None else min(left, begun))]
    return [
        Phase("detect", end.time),
        Phase("abort", end.time if left is None else min(left, begun)),
    ]


def _parts(
    current: CurrentGeneration, begun: float, restored: float
) -> Iterator[tuple[str, tuple[float, float]]]:
    """What the time of a restore went to, as rank 0 measured it."""
    report = current.restored.get(0)
    whole = _within(report.seconds if report else 0.0, restored - begun)
    if report is None or not whole:
        return
    entered = restored - whole
    joined = entered + _within(report.join_seconds, whole)
    yield "restore/start ranks", (begun, entered)
    yield "restore/join", (entered, joined)
    yield "restore/load", (joined, restored)


def _within(seconds: float, most: float) -> float:
    """A duration that somebody else measured, cut to what it can have been."""
    return min(max(0.0, seconds), most) if math.isfinite(seconds) else 0.0


def _span(
    state: State,
    trace: str,
    path: str,
    time: tuple[float, float],
    facts: Mapping[str, Value],
    error: str = "",
) -> Span:
    start, end = (state.wall(at) for at in time)
    return Span(trace, path, path.rpartition("/")[2], start, end, facts, error)


def _facts(traced: TracedGeneration, phase: str) -> dict[str, Value]:
    """What a part of the way has beside its time."""
    current = traced.generation
    if phase == "restore" and current.restored:
        slowest = max(current.restored.values(), key=lambda report: report.seconds)
        seconds = _within(slowest.seconds, traced.until - current.begun)
        return {"regroup.slowest_rank": slowest.rank, "regroup.slowest_rank_seconds": seconds}
    if phase == "first step" and current.first_commit is not None and 0 in current.restored:
        return {"regroup.steps": current.first_commit.step - current.restored[0].step}
    return {}


def _about(state: State, current: CurrentGeneration) -> dict[str, Value]:
    record, number = current.record, current.number
    known = state.recoveries.record_of(number)
    first = current.restored.get(0)
    source = first.restored_from if first and first.restored_from else record.restored_from
    about: dict[str, Value | None] = {
        "regroup.namespace": record.desired.namespace,
        "regroup.trainingjob": record.desired.job,
        "regroup.generation": str(number),
        "regroup.world_size": record.world_size,
        "regroup.restored_from": source,
        **(_of_recovery(known) if known else {}),
    }
    return {key: value for key, value in about.items() if value not in (None, "")}


def _of_recovery(known: Recovery) -> dict[str, Value | None]:
    """As the status shows them."""
    return {
        "regroup.cause": known.cause,
        "regroup.pod": known.pod,
        "regroup.node": known.node,
        "regroup.exit_code": known.exit_code,
        "regroup.world_size_before": known.world_size_before,
        "regroup.lost_steps": known.lost_steps,
        "regroup.resumed_from_step": known.resumed_from_step,
        "regroup.down_seconds": known.down_seconds,
    }
