"""Judges a job after its faults, from what others saw of it. Pure; it shares no code with the
product.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from soak.allowed_losses import SEEN_LATE_SECONDS, a_copy_lived, over_allowed
from soak.evidence import Evidence, Sample
from soak.kinds import APPLICATION, HANG, may_be_counted
from soak.lost_steps import generation_of, hidden, losses, unflushed
from soak.pod_states import waits_for_kubernetes
from soak.records import Line, Records
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
Json = Mapping[str, Any]


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
    lost = tuple(losses(evidence, found))
    needless = [loss for loss in lost if a_copy_lived(evidence, loss)]
    others = [loss for loss in lost if loss not in needless]
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
        lost=lost,
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
    yield from hidden(evidence, found)
    if found.steps and evidence.commits == ():
        yield "no commit of a rank was ever seen"
    copied = any(kept.snapshots for kept in evidence.kept)
    if not copied and max(found.steps, default=0) > 2 * evidence.checkpoint_steps:
        yield "no memory snapshot was ever seen to be whole"


def status_lies(evidence: Evidence, found: Replay) -> Iterator[str]:
    """Where the status says something else than the replay."""
    said = int(evidence.status.get("goodput", {}).get("lostSteps", 0))
    unwritten = unflushed(evidence.recoveries)
    lost = sum(loss.steps for loss in found.lost)
    if said != lost + unwritten:
        yield (
            f"status.goodput.lostSteps is {said}, but the replay gives {lost}, "
            f"and {unwritten} were unflushed"
        )
    newest = max(found.steps, default=0)
    shown = int(evidence.status.get("progress", {}).get("step", 0))
    if shown != newest:
        yield f"status.progress.step is {shown} at the end, but the history ends at {newest}"
    for one in evidence.recoveries:
        yield from _recovery_lies(one, evidence.records)
    for loss in found.lost:
        yield from _unrecorded(loss, evidence.recoveries)
    if evidence.faults is not None:
        yield from unexplained_restarts(evidence.status, evidence.faults)


def unexplained_restarts(status: Json, faults: Sequence[str]) -> Iterator[str]:
    """Causes that more restarts are counted as than faults may be: what a node, a volume or a
    network does is not the program's fault, and is charged to no budget of it.
    """
    for cause in (APPLICATION, HANG):
        said = int(status.get("restarts", {}).get(cause, 0))
        most = may_be_counted(cause, faults)
        if said > most:
            yield (
                f"status.restarts.{cause} is {said}, but no more than {most} of the faults may be "
                "counted so"
            )


def _recovery_lies(recovery: Json, records: Records) -> Iterator[str]:
    generation = generation_of(recovery)
    link = records.links.get(generation) if generation else None
    said = recovery.get("resumedFromStep")
    if link is not None and said is not None and said != link.resumed_from:
        yield (
            f"status says that generation {recovery['generation']} resumed from step {said}; its "
            f"lineage record says {link.resumed_from}"
        )


def _unrecorded(loss: Loss, recoveries: Iterable[Json]) -> Iterator[str]:
    """That a loss has no record, or one that gives other steps."""
    of_it = [one for one in recoveries if generation_of(one) == loss.generation]
    written = sum(int(one.get("lostSteps", 0)) for one in of_it) - unflushed(of_it)
    if written != loss.steps:
        said = f"{len(of_it)} records say {written}" if of_it else "no record is of it"
        yield f"generation {loss.generation} lost {loss.steps} steps, but {said}"


def stuck(evidence: Evidence) -> Iterator[str]:
    """The times without progress that are longer than allowed, and an end that does not come.

    The clock stands while the volume does not answer, and while Kubernetes does not start pods
    without which too few could run. It begins anew with a step beyond all before it, and with each
    step made again that a fault has cost. A job that loses steps by itself and makes them again, or
    forms generations without a step, is stuck.
    """
    if not evidence.was_suspended:
        yield "it was not suspended in time"
    if not evidence.samples:
        yield "nobody looked at its steps while it trained"
    excused = (*evidence.excused, *waits_for_kubernetes(evidence.looks, evidence.min_replicas))
    for since, last, highest in _waits(evidence.samples):
        for start, end in _between(_made_again(evidence, since, last), since, last):
            stood = end - start - _common(excused, start, end)
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


def _made_again(evidence: Evidence, since: float, last: float) -> list[tuple[float, float]]:
    """When steps were made again that faults have cost; never, where steps were lost more often
    than a fault hit ranks of the job.
    """
    seen = [
        (one.time, one.step)
        for one in evidence.samples
        if since <= one.time <= last and one.step is not None
    ]
    steps = [(start, end, after - before) for (start, before), (end, after) in pairwise(seen)]
    falls = sum(made < 0 for _, _, made in steps)
    times = [hit.time for hit in evidence.hits if hit.ranks]
    hits = sum(since - SEEN_LATE_SECONDS <= time <= last for time in times)
    return [(start, end) for start, end, made in steps if made > 0] if falls <= hits else []


def _between(
    spans: Iterable[tuple[float, float]], since: float, until: float
) -> Iterator[tuple[float, float]]:
    """The times from `since` to `until` that are outside of spans, of which none overlap."""
    for start, end in sorted(spans):
        yield since, start
        since = end
    yield since, until


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
