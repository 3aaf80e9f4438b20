"""Judges a job after its faults, from what others saw of it. Pure; it shares no code with the
product.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from soak.allowed_losses import a_copy_lived, over_allowed
from soak.evidence import Evidence, Sample
from soak.pod_states import waits_for_kubernetes
from soak.records import Line, Number, Records
from soak.replay import Loss, Replay, replay

LOSS_DIFFERENCE = 3e-5
"""Relative. The order of sums differs with the number of ranks; the differences found are 6e-6."""
LOSS_STEPS = {"gpt": 6_000}
"""Program -> the last step whose loss is compared; without a limit where none stands here.

Training enlarges the differences of rounding. Two undisturbed runs of the soak's GPT by one and by
three workers, no fault in either, had the same samples at all steps and these relative differences
of their losses (median, largest): 1e-6, 6e-6 in steps 5,501 to 6,000; 2e-6, 2e-5 in the 500 steps
after that; 2e-5, 9e-5 in steps 7,001 to 7,500; 2e-5, 3e-4 at 9,000. The first above 3e-5 was step
6,644. Nothing else is less strict after this step.
"""
IGNORED_FAULTS = 20
"""Memory may grow during the first ones."""
NEW_FAULTS, NEW_FAULTS_OF_OPERATOR = 3, 10
"""So may that of a process that has just started. An operator grows by 3 MB within ten faults, of
which each may be the first that it sees of its kind, and then no more.
"""
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Growth:
    """The sums of a slope by least squares, in which each process has a level of its own."""

    rise: float = 0.0
    spread: float = 0.0
    steps: int = 0
    """From fault to fault."""

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.rise + other.rise, self.spread + other.spread, self.steps + other.steps)

    @property
    def mebibytes(self) -> float | None:
        """MB per 100 faults; None: there were too few to tell."""
        return 100 * self.rise / self.spread if self.steps >= IGNORED_FAULTS else None


class Memory(NamedTuple):
    """What a process had in use after a fault."""

    role: str
    """operator (that leads), standby, coordinator or worker."""
    process: str
    """Distinct from that of another process."""
    fault: int
    size: float
    """MB."""


@dataclass(frozen=True)
class Verdict:
    """What was found about a job."""

    job: str
    steps: int
    compared: int
    """Steps whose loss and samples were both compared with those of the undisturbed run."""
    lost_whole_copies: int
    """Steps lost though a whole copy of the state lived."""
    lost_over_interval: int
    """Steps lost without a whole copy, beyond what snapshots or checkpoints allow."""
    stuck: tuple[str, ...]
    mismatches: tuple[str, ...]
    duplicates: tuple[str, ...]
    lost: tuple[Loss, ...] = field(default=())

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        counts = self.lost_whole_copies + self.lost_over_interval
        return not (counts or self.stuck or self.mismatches or self.duplicates)

    @property
    def findings(self) -> Json:
        """The fields that say something."""
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        words = "clean" if self.is_clean else json.dumps(self.findings)[:2000]
        return (
            f"{self.job}: {self.steps} steps, {self.compared} compared with the undisturbed run: "
            f"{words}"
        )


def judge(evidence: Evidence) -> Verdict:
    """The verdict on a job."""
    found = replay(evidence.records)
    last = LOSS_STEPS.get(evidence.program)
    needless = [loss for loss in found.lost if a_copy_lived(evidence, loss)]
    others = [loss for loss in found.lost if loss not in needless]
    return Verdict(
        job=evidence.job,
        steps=max(found.steps, default=0),
        compared=sum(
            _in_full(step, last) for step in found.steps.keys() & evidence.reference.keys()
        ),
        lost_whole_copies=sum(loss.steps for loss in needless),
        lost_over_interval=sum(over_allowed(evidence, loss) for loss in others),
        stuck=tuple(stuck(evidence)),
        mismatches=(
            *found.mismatches,
            *uncompared(found.steps, evidence.reference),
            *different_steps(found.steps, evidence.reference, last),
            *(_of_our_launcher(evidence, found) if not evidence.is_torchrun else ()),
        ),
        duplicates=tuple(evidence.duplicates),
        lost=found.lost,
    )


def uncompared(steps: Mapping[int, Line], reference: Mapping[int, Line]) -> Iterator[str]:
    """That there is nothing to compare, or not with all steps."""
    if not steps:
        yield "nothing was compared: the history has no step"
    elif missing := sorted(steps.keys() - reference.keys()):
        yield (
            f"{len(missing)} of {len(steps)} steps were not compared, from step {missing[0]} on: "
            f"the undisturbed run ends at step {max(reference, default=0)}"
        )


def different_steps(
    steps: Mapping[int, Line], reference: Mapping[int, Line], last: int | None = None
) -> Iterator[str]:
    """Steps with other samples than in the undisturbed run, and up to step `last` with another
    loss.
    """
    for step in sorted(steps.keys() & reference.keys()):
        line, expected = steps[step], reference[step]
        if (line.first, line.count, line.hash) != (expected.first, expected.count, expected.hash):
            yield f"step {step} trained on other samples than in the undisturbed run"
        if _in_full(step, last) and not _is_close(line.loss, expected.loss):
            yield f"step {step} has the loss {line.loss}, undisturbed {expected.loss}"


def _of_our_launcher(evidence: Evidence, found: Replay) -> Iterator[str]:
    yield from status_lies(evidence, found)
    copied = any(kept.snapshots for kept in evidence.kept)
    if not copied and max(found.steps, default=0) > 2 * evidence.checkpoint_steps:
        yield "no memory snapshot was ever seen to be whole"


def status_lies(evidence: Evidence, found: Replay) -> Iterator[str]:
    """Where the status says something else than the replay."""
    said = int(evidence.status.get("goodput", {}).get("lostSteps", 0))
    unflushed = sum(int(one.get("unflushedSteps", 0)) for one in evidence.recoveries)
    lost = sum(loss.steps for loss in found.lost)
    if said != lost + unflushed:
        yield (
            f"status.goodput.lostSteps is {said}, but the replay gives {lost}, "
            f"and {unflushed} were unflushed"
        )
    newest = max(found.steps, default=0)
    shown = int(evidence.status.get("progress", {}).get("step", 0))
    if shown != newest:
        yield f"status.progress.step is {shown} at the end, but the history ends at {newest}"
    for one in evidence.recoveries:
        yield from _recovery_lies(one, evidence.records)


def _recovery_lies(recovery: Json, records: Records) -> Iterator[str]:
    number = _number(str(recovery.get("generation", "")))
    link = records.links.get(number) if number else None
    said = recovery.get("resumedFromStep")
    if link is not None and said is not None and said != link.resumed_from:
        yield (
            f"status says that generation {recovery['generation']} resumed from step {said}; its "
            f"lineage record says {link.resumed_from}"
        )


def stuck(evidence: Evidence) -> Iterator[str]:
    """The times without progress that are longer than allowed, and an end that does not come.

    The clock stands while the volume does not answer, and while Kubernetes does not start pods
    without which too few could run. Only a step beyond all before it is progress. A job that makes
    the same steps again and again, or forms generations without a step, is stuck.
    """
    if not evidence.was_suspended:
        yield "it was not suspended in time"
    if not evidence.samples:
        yield "nobody looked at its steps while it trained"
    excused = (*evidence.excused, *waits_for_kubernetes(evidence.looks, evidence.min_replicas))
    for since, last, highest in _waits(evidence.samples):
        stood = last - since - _common(excused, since, last)
        if stood > evidence.stuck_seconds:
            yield f"no progress beyond step {highest} for {stood:.0f} s"


def _waits(samples: Sequence[Sample]) -> Iterator[tuple[float, float, int]]:
    """From when to when the highest step was seen unchanged, and that step; 0 before the first."""
    since, last, highest = None, 0.0, 0
    for sample in samples:
        step = sample.step or 0
        if since is None or step > highest:
            if since is not None:
                yield since, last, highest
            since = sample.time
        last, highest = sample.time, max(highest, step)
    if since is not None:
        yield since, last, highest


def memory_growth(samples: Sequence[Memory]) -> Mapping[str, Growth]:
    """Role -> how much its processes grew, after the campaign's first twenty faults and without the
    first ones of each process.

    Agents and coordinators seldom live through twenty faults. So all processes of a role count
    together: one slope, from wherever each began.
    """
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in samples:
        points.setdefault((one.role, one.process), []).append((one.fault, one.size))
    grown: dict[str, Growth] = {}
    for (role, _), life in points.items():
        new = NEW_FAULTS_OF_OPERATOR if role == "operator" else NEW_FAULTS
        counted = [point for point in life[new:] if point[0] > IGNORED_FAULTS]
        grown[role] = grown.get(role, Growth()) + _growth(counted)
    return grown


def _growth(life: Sequence[tuple[int, float]]) -> Growth:
    """Of one process."""
    if not life:
        return Growth()
    mean_x = sum(x for x, _ in life) / len(life)
    mean_y = sum(y for _, y in life) / len(life)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in life)
    return Growth(rise, sum((x - mean_x) ** 2 for x, _ in life), len(life) - 1)


def _common(spans: Iterable[tuple[float, float]], since: float, until: float) -> float:
    """So many seconds of those from `since` to `until` are within spans, which may overlap."""
    common, done = 0.0, since
    for start, end in sorted(spans):
        begun, ended = max(start, done), min(end, until)
        common += max(ended - begun, 0.0)
        done = max(done, ended)
    return common


def _in_full(step: int, last: int | None) -> bool:
    return last is None or step <= last


def _is_close(loss: float | None, expected: float | None) -> bool:
    if loss is None or expected is None:
        return loss == expected
    return math.isclose(loss, expected, rel_tol=LOSS_DIFFERENCE)


def _number(text: str) -> Number | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
