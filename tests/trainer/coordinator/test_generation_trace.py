"""The trace of the way to a generation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, GenerationEnd
from regroup_trainer.coordinator.generation_trace import (
    BROKEN,
    Departure,
    TracedGeneration,
    _of_recovery,
    spans_of,
    trace_of,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Recovery
from regroup_trainer.protocol.ledger import Cause
from regroup_trainer.protocol.rank_messages import Progress, Restored
from regroup_trainer.system.spans import ROOT, Span, export_request
from tests.support import traces_page
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_generation
from tests.support.otlp_receiver import parse_request, paths_of, spans_in

WALL = 1_000_000.0
RECOVERY = [ROOT, "detect", "abort", "form", "restore", "first step"]


def make_traced(
    *,
    end: GenerationEnd | None = None,
    before: Departure | None = None,
    restored: Restored | None = None,
    restored_at: float | None = 13.0,
    first_commit_at: float | None = 14.0,
    until: float = 14.0,
) -> TracedGeneration:
    """Generation 1.2, which began at 12.0. Its rank 0 restored its state at 13.0."""
    record = make_generation(1, 2)
    report = restored or make_restored()
    step = Progress(generation=record.number, rank=0, step=42, time=WALL)
    generation = CurrentGeneration(
        record,
        begun=12.0,
        restored={report.rank: report} if restored_at is not None else {},
        restored_at=restored_at,
        first_commit=step if first_commit_at is not None else None,
        first_commit_at=first_commit_at,
        previous_end=end,
    )
    return TracedGeneration(generation, before, since=5.0, until=until)


def make_restored(seconds: float = 0.5, join_seconds: float = 0.2) -> Restored:
    """The report of rank 0, whatever the times that it measured."""
    report = Restored(generation=GenerationNumber(1, 2), rank=0, step=40)
    return report.model_copy(update={"seconds": seconds, "join_seconds": join_seconds})


def make_loss(cause: Cause = "infrastructure", detect_seconds: float = 2.0) -> GenerationEnd:
    """A member was lost, which was detected at 10.0."""
    return GenerationEnd(10.0, cause, "worker w1 is lost", detect_seconds=detect_seconds)


def make_state() -> State:
    """Of a coordinator whose wall clock is ahead of the monotonic one."""
    return State(1, "node-c", make_desired(), 5.0, WALL)


def trace(traced: TracedGeneration) -> dict[str, Span]:
    """The spans by path. They can be exported, and each is within the one it is a part of."""
    spans = spans_of(make_state(), "uid-1", traced)
    assert {span.trace for span in spans} == {trace_of("uid-1", GenerationNumber(1, 2))}
    paths_of(spans_in(parse_request(export_request({}, spans))))
    by_path = {span.path: span for span in spans}
    assert len(by_path) == len(spans)
    for path, span in by_path.items():
        whole = by_path[path.rpartition("/")[0]]
        assert whole.start <= span.start <= span.end <= whole.end, path
    return by_path


def times(spans: dict[str, Span]) -> dict[str, tuple[float, float]]:
    """When each began and ended, by the coordinator's monotonic clock."""
    return {path: (round(s.start - WALL, 6), round(s.end - WALL, 6)) for path, s in spans.items()}


def test_a_recovery_is_shown_from_the_last_sign_of_life_to_the_first_step() -> None:
    spans = trace(make_traced(end=make_loss(), before=Departure(None, 11.0)))
    assert times(spans) == {
        ROOT: (8.0, 14.0),
        "detect": (8.0, 10.0),
        "abort": (10.0, 11.0),
        "form": (11.0, 12.0),
        "restore": (12.0, 13.0),
        "restore/start ranks": (12.0, 12.5),
        "restore/join": (12.5, 12.7),
        "restore/load": (12.7, 13.0),
        "first step": (13.0, 14.0),
    }
    assert spans[ROOT].name == "recovery"
    assert spans["first step"].attributes == {"regroup.steps": 2}
    assert spans["restore"].attributes == {
        "regroup.slowest_rank": 0,
        "regroup.slowest_rank_seconds": 0.5,
    }
    about = spans[ROOT].attributes
    assert (about["regroup.namespace"], about["regroup.trainingjob"]) == ("default", "gpt")
    assert (about["regroup.generation"], about["regroup.world_size"]) == ("1.2", 2)
    assert not any(span.error for span in spans.values())


def test_a_planned_change_begins_with_the_decision_and_an_agreed_end() -> None:
    traced = make_traced(end=make_loss("resize", 0.0), before=Departure(9.0, 11.5))
    assert times(trace(traced))["agreed end"] == (9.0, 11.5)
    assert trace(traced)[ROOT].name == "resize"
    assert "detect" not in trace(traced)


def test_a_first_start_begins_with_the_coordinator() -> None:
    spans = trace(make_traced())
    assert spans[ROOT].name == "start"
    assert [path for path in spans if "/" not in path] == [ROOT, "form", "restore", "first step"]
    assert times(spans)["form"] == (5.0, 12.0)


@pytest.mark.parametrize(("restored_at", "last"), [(None, "restore"), (13.0, "first step")])
def test_a_generation_that_breaks_shows_how_far_it_came(
    restored_at: float | None, last: str
) -> None:
    loss, before = make_loss(), Departure(None, 11.0)
    traced = make_traced(
        end=loss, before=before, restored_at=restored_at, first_commit_at=None, until=13.5
    )
    spans = trace(traced)
    assert [path for path in spans if "/" not in path] == RECOVERY[: RECOVERY.index(last) + 1]
    assert spans[ROOT].error == spans[last].error == BROKEN
    assert times(spans)[last][1] == times(spans)[ROOT][1] == 13.5


def test_of_a_program_that_reports_nothing_the_trace_ends_where_it_begins() -> None:
    traced = make_traced(restored_at=None, first_commit_at=None, until=999.0)
    script = traced.generation.record.desired.model_copy(update={"script": ("train.py",)})
    record = traced.generation.record.model_copy(update={"desired": script})
    spans = trace(replace(traced, generation=replace(traced.generation, record=record)))
    assert times(spans) == {ROOT: (5.0, 12.0), "form": (5.0, 12.0)}
    assert not spans[ROOT].error


def test_the_page_lists_each_span_and_each_attribute() -> None:
    before = Departure(None, 11.0)
    generations = [
        make_traced(end=make_loss(), before=before),
        make_traced(end=make_loss("resize", 0.0), before=Departure(9.0, 11.5)),
        make_traced(),
    ]
    traces = [trace(traced) for traced in generations]
    made = {path for spans in traces for path in spans if path != ROOT}
    assert made == traces_page.spans_made_by("coordinator")
    assert {spans[ROOT].name for spans in traces} == traces_page.kinds() - {"succession"}
    every = [span for spans in traces for span in spans.values()]
    of_recovery = _of_recovery(Recovery.model_construct(**_RECOVERY))
    used = {key for span in every for key in span.attributes} | of_recovery.keys()
    assert used == traces_page.attributes() - {"regroup.term"}


_RECOVERY = dict.fromkeys(Recovery.model_fields)
odd = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e300]))
moment = st.floats(min_value=0, max_value=20)
perhaps = st.one_of(st.none(), moment)


@given(odd, odd, perhaps, perhaps, perhaps, perhaps, moment, st.sampled_from(["hang", "resize"]))
def test_whatever_agents_report_each_part_lies_in_the_whole(
    seconds: float,
    join_seconds: float,
    restored_at: float | None,
    first_commit_at: float | None,
    decided_at: float | None,
    left_at: float | None,
    detect_seconds: float,
    cause: Cause,
) -> None:
    traced = make_traced(
        end=make_loss(cause, detect_seconds),
        before=Departure(decided_at, left_at),
        restored=make_restored(seconds=seconds, join_seconds=join_seconds),
        restored_at=restored_at,
        first_commit_at=first_commit_at,
    )
    spans = trace(traced)
    assert len(spans) <= 9
    assert spans[ROOT].end - spans[ROOT].start <= 40
