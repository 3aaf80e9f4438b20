"""No job, whoever wrote it, ends a verb with an error, or controls the terminal."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from regroup.kubernetes.event_record import read_events
from regroup.kubernetes.job_description import describe, description_lines
from regroup.kubernetes.job_list import job_list
from regroup.kubernetes.job_record import read_job
from regroup.kubernetes.job_summary import exit_code, status_line, status_lines, status_report
from regroup.kubernetes.output import structured
from regroup.kubernetes.pod_record import read_pods
from regroup.kubernetes.timeline import timeline, timeline_lines
from regroup.kubernetes.top_table import recent_marks, top_lines, top_rows
from regroup.kubernetes.why_report import Scene, explain, operator_sign, why_lines
from tests.support.cluster_objects import NOW, at, job_object, pod_object

WORDS = st.sampled_from(["gpt", "", "\x1b[2J", "line\nline", "é" * 300, "Running", "1.2"])
TIMES = st.sampled_from(
    [
        at(5), at(5000), at(-5000),
        "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9998-12-31T23:59:59-12:00",
    ]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 7, 2**62, 10**30, 0.5, 1e300, -1e300])
ANYTHING: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | WORDS | st.just([]) | st.just({})
)


def entry(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with any of these fields, each of which may hold anything."""
    return st.fixed_dictionaries({}, optional={k: v | ANYTHING for k, v in fields.items()})


def entries(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(entry(**fields), max_size=11)


CONDITIONS = entries(
    type=st.sampled_from(["Ready", "Failed", "Complete", "Degraded", "Suspended"]),
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=WORDS | st.sampled_from(["Unschedulable", "Suspended"]),
    message=WORDS,
    lastTransitionTime=TIMES,
)
RECOVERIES = entries(
    time=TIMES,
    cause=WORDS,
    restoredFrom=WORDS,
    generation=WORDS,
    pod=WORDS,
    node=WORDS,
    message=WORDS,
    lostSteps=NUMBERS,
    downSeconds=NUMBERS,
    worldSizeBefore=NUMBERS,
    worldSizeAfter=NUMBERS,
    exitCode=NUMBERS,
)
STATUS = entry(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Suspended"]),
    message=WORDS,
    conditions=CONDITIONS,
    recoveries=RECOVERIES,
    startTime=TIMES,
    completionTime=TIMES,
    replicas=NUMBERS,
    readyReplicas=NUMBERS,
    worldSize=NUMBERS,
    restartCount=NUMBERS,
    checkpoint=entry(lastStep=NUMBERS, lastTime=TIMES, sizeBytes=NUMBERS, seconds=NUMBERS),
    progress=entry(
        step=NUMBERS,
        totalSteps=NUMBERS,
        loss=NUMBERS,
        tokensPerSecond=NUMBERS,
        samplesPerSecond=NUMBERS,
        stepsPerSecond=NUMBERS,
        remainingSeconds=NUMBERS,
        updatedTime=TIMES,
    ),
    goodput=entry(productiveSeconds=NUMBERS, waitingSeconds=NUMBERS, ratio=NUMBERS),
    workers=entries(index=NUMBERS, pod=WORDS, node=WORDS, state=WORDS, rank=NUMBERS),
    stragglers=entries(rank=NUMBERS, node=WORDS, percent=NUMBERS),
    images=st.dictionaries(WORDS, WORDS),
    excludedNodes=st.lists(WORDS),
)
EVENTS = entries(reason=WORDS, message=WORDS, lastTimestamp=TIMES, count=NUMBERS, type=WORDS)


@settings(max_examples=40)
@given(status=STATUS, events=EVENTS, spec=entry(replicas=NUMBERS, image=WORDS))
def test_every_report_of_any_status_is_made_of_lines_that_can_be_printed(
    status: Any, events: Any, spec: Any
) -> None:
    job = read_job(job_object(status, **spec))
    about, pods = read_events(events), read_pods([pod_object()])
    scene = Scene(job, operator_sign(job, None, pods, about, NOW), pods, about)
    report, drawn = explain(scene, NOW), timeline(job, NOW)
    rows = top_rows([job], recent_marks([job], {}), set())
    shown = [
        *job_list([job], NOW, with_namespace=True, wide=True),
        *status_lines(job, NOW, 80, wide=True),
        *description_lines(job, about, NOW, 80),
        *timeline_lines(job, drawn, 80),
        *top_lines(rows, NOW, with_namespace=True, wide=True),
        *why_lines(report, 80),
        status_line(job, NOW),
    ]
    assert all(line.isprintable() for line in shown)
    for value in (status_report(job), describe(job, about), drawn, report, *rows):
        assert structured(value, "json").isascii()
        assert "\x1b" not in structured(value, "yaml")
    assert 0 <= exit_code(job) <= 6
