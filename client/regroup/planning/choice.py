"""Chooses a layout: the best of each kind, what fits, and the recommended one with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from regroup.planning import memory_estimate, timing
from regroup.planning.hardware import GIGA, Cluster
from regroup.planning.layouts import PLANNED, Batch, Grid, Layout, grids, layouts
from regroup.planning.memory_estimate import Memory
from regroup.planning.timing import StepTime
from regroup.planning.transformer import Transformer

MODEL_ERROR = 0.16
"""How far apart two estimates of one machine must lie before the faster one is known to be faster.

Of the published runs on one kind of machine that docs/tasks/plan.md lists, planned and measured
times disagree with each other by up to this. What errs on all layouts alike does not count here.
"""
NEXT_BEST = 5
"""Layouts that a plan names beside the recommended one."""

SAME = 1.01
"""Times within this factor count as equal, for layouts of the same grid."""

Refusal = Callable[[Layout], str]
"""Returns why the trainer cannot use a layout; empty when it can."""


@dataclass(frozen=True)
class Question:
    """What is to be trained, and on which machines."""

    model: Transformer
    batch: Batch
    cluster: Cluster


@dataclass(frozen=True)
class Candidate:
    """A layout and what it costs."""

    layout: Layout
    memory: Memory
    time: StepTime
    fits: bool
    refusal: str = ""
    """Why the trainer cannot use it; empty when it can."""

    @property
    def eligible(self) -> bool:
        """Whether it may be recommended."""
        return self.fits and not self.refusal


@dataclass(frozen=True)
class Plan:
    """The answer to a question."""

    question: Question
    candidates: tuple[Candidate, ...]
    """The best of each grid, fastest first, those that fit before those that do not."""
    recommended: Candidate | None
    """None when nothing fits."""
    reason: str


def plan(question: Question, refusal: Refusal = lambda _layout: "") -> Plan:
    """Compare all layouts. `refusal` names those that the trainer cannot use."""
    best = [_best(question, grid, refusal) for grid in _grids(question)]
    ordered = tuple(
        sorted(best, key=lambda c: (not c.fits, c.time.total if c.fits else c.memory.total))
    )
    recommended = _recommend(ordered)
    reason = (
        _reason(question, ordered, recommended)
        if recommended
        else _why_nothing_fits(question, ordered)
    )
    return Plan(question, ordered, recommended, reason)


def _grids(question: Question) -> Iterable[Grid]:
    return grids(question.model, question.cluster, question.batch.sequence_length)


def examine(question: Question, layout: Layout, refusal: Refusal = lambda _layout: "") -> Candidate:
    """Estimate the memory and time of one layout."""
    gpu = question.cluster.gpu
    needed = memory_estimate.estimate(question.model, layout, question.batch, gpu.element_bytes)
    time = timing.estimate(question.model, layout, question.batch, question.cluster)
    return Candidate(
        layout, needed, time, needed.total <= memory_estimate.usable(gpu), refusal(layout)
    )


def fewest_nodes(question: Question, chosen: Candidate, per_group: int) -> int:
    """The fewest machines, a multiple of `per_group`, on which the chosen kind of layout still
    fits.
    """
    grid, cluster = chosen.layout.grid, question.cluster
    fewest = cluster.nodes
    for nodes in range(cluster.nodes - per_group, 0, -per_group):
        data = nodes * cluster.gpus_per_node // grid.ranks_per_row
        shard = grid.shard if grid.kind.replicates else data
        smaller = replace(grid, shard=shard, replicate=data // shard)
        layout = Layout(smaller, chosen.layout.micro_batch, chosen.layout.checkpointing)
        needed = memory_estimate.estimate(
            question.model, layout, question.batch, cluster.gpu.element_bytes
        )
        if needed.total > memory_estimate.usable(cluster.gpu):
            break
        fewest = nodes
    return fewest


def _best(question: Question, grid: Grid, refusal: Refusal) -> Candidate:
    """The fastest layout of a grid that fits, or else the smallest."""
    candidates = [examine(question, layout, refusal) for layout in layouts(grid, question.batch)]
    fitting = [candidate for candidate in candidates if candidate.fits]
    accepted = [candidate for candidate in fitting if not candidate.refusal] or fitting
    if accepted:
        limit = min(candidate.time.total for candidate in accepted) * SAME
        near = [candidate for candidate in accepted if candidate.time.total <= limit]
        return max(near, key=lambda c: c.layout.micro_batch)  # fewer, larger kernels
    return min(candidates, key=lambda c: c.memory.total)


def _recommend(candidates: Iterable[Candidate]) -> Candidate | None:
    """The simplest of those that may be the fastest."""
    near = _indistinguishable([candidate for candidate in candidates if candidate.eligible])
    return min(near, key=lambda c: c.layout.grid.complexity, default=None)


def _indistinguishable(ordered: list[Candidate]) -> list[Candidate]:
    """Those, fastest first, whose distance to the fastest lies inside the error of the model."""
    limit = ordered[0].time.total * (1 + MODEL_ERROR) if ordered else 0.0
    return [candidate for candidate in ordered if candidate.time.total <= limit]


def _reason(question: Question, candidates: tuple[Candidate, ...], chosen: Candidate) -> str:
    limit = memory_estimate.usable(question.cluster.gpu)
    fitting = sum(candidate.fits for candidate in candidates)
    reasons = [
        f"It needs {chosen.memory.total / GIGA:.3g} of {limit / GIGA:.1f} GB that tensors may fill",
        f"{fitting} of {len(candidates)} arrangements fit",
        *_comparison([c for c in candidates if c.eligible], chosen),
        *_idle(question.batch, chosen.layout),
    ]
    plain = next((c for c in candidates if c.layout.grid.kinds == {PLANNED[0]}), None)
    if plain and not plain.fits:
        need = f"{plain.memory.total / GIGA:,.0f} GB"
        reasons.append(f"plain {PLANNED[0]} would need {need}")
    return "; ".join(reasons)


def _idle(batch: Batch, layout: Layout) -> Iterable[str]:
    """Ranks without samples, or, where each has one, padding that is worth a word."""
    ranks = layout.grid.data
    computed = ranks * layout.micro_batches(batch) * layout.samples(batch)
    if ranks > batch.samples:
        yield (
            f"{ranks - batch.samples} of {ranks} data-parallel ranks have no sample and only "
            f"repeat others: give a global batch of {ranks} or more"
        )
    elif computed > batch.samples * SAME:
        share = f"{1 - batch.samples / computed:.0%} of the samples computed are padding"
        yield f"{share}: a global batch of {computed} takes as long"


def _comparison(eligible: list[Candidate], chosen: Candidate) -> Iterable[str]:
    """How the chosen one compares with the fastest other one, and whether that can be known."""
    others = [candidate for candidate in eligible if candidate is not chosen]
    if not others:
        return
    best = others[0]
    name, error = best.layout.grid.name, f"the error of the estimate ({MODEL_ERROR:.0%})"
    if best.time.total < chosen.time.total:
        lead = chosen.time.total / best.time.total - 1
        yield f"{name} leads by {lead:.1%}, less than {error}, and is more complex to operate"
    elif best in _indistinguishable(eligible):
        lead = best.time.total / chosen.time.total - 1
        yield f"its lead of {lead:.1%} over the next best, {name}, is less than {error}"
    else:
        lead = best.time.total / chosen.time.total - 1
        yield f"the next best, {name}, is {lead:.1%} slower"


def _why_nothing_fits(question: Question, candidates: tuple[Candidate, ...]) -> str:
    limit = memory_estimate.usable(question.cluster.gpu) / GIGA
    refused = [candidate for candidate in candidates if candidate.fits]
    if refused:
        return f"{refused[0].layout.grid.name} would fit, but {refused[0].refusal}"
    least = candidates[0]
    needed = least.memory.total / GIGA
    return (
        f"nothing fits: the smallest, {least.layout.grid.name} (checkpointing: "
        f"{least.layout.checkpointing}), needs "
        f"{needed:.1f} GB, and one {question.cluster.gpu.name} has {limit:.1f} GB for tensors: "
        "take more than "
        f"{needed / limit:.1f} times as many devices, larger ones, or shorter sequences"
    )
