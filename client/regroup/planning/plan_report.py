"""Prints a plan as tables of about a hundred columns, or as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table

from regroup.planning import memory_estimate, mesh_cost
from regroup.planning.choice import MODEL_ERROR, NEXT_BEST, Candidate, Plan, Question
from regroup.planning.efficiency import Share
from regroup.planning.hardware import GIGA

WIDTH = 100
_CHECKPOINTING = {"none": "-", "selective": "sel", "full": "full"}


class Unit(NamedTuple):
    """The unit of a column."""

    name: str
    size: float

    def of(self, value: float) -> str:
        """The value with three digits; a dash for zero."""
        counted = value / self.size
        if counted == 0:
            return "-"
        if counted < 0.005:
            return "0.00"
        return (
            f"{counted:.2f}"
            if counted < 10
            else f"{counted:.1f}"
            if counted < 100
            else f"{counted:,.0f}"
        )


_BYTES = (Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3))
_SECONDS = (Unit("s", 1.0), Unit("ms", 1e-3))


def unit_for(largest: float, units: tuple[Unit, ...]) -> Unit:
    """The largest unit that `largest` reaches, else the smallest."""
    return next((unit for unit in units if largest >= unit.size), units[-1])


def show(plan: Plan, console: Console, job: str, asked: Candidate | None = None) -> None:
    """Print the plan. `job` is the YAML to submit, `asked` the layout that a given file asks
    for.
    """
    console.print(_question(plan.question), soft_wrap=True, highlight=False)
    rows = shown(plan, asked)
    _print_whole(console, _memory_table(plan, rows, asked))
    _print_whole(console, _time_table(plan, rows, asked))
    console.print(_assumptions(plan.question), style="dim", highlight=False)
    if warning := mesh_cost.warning(plan.question.cluster):
        console.print(f"[yellow]warning[/]: {warning}", highlight=False)
    for reason, names in _refused(rows).items():
        console.print(f"[yellow]refused[/]: {', '.join(names)}: {escape(reason)}", highlight=False)
    if asked is not None:
        console.print(_comparison(plan, asked), highlight=False)
    if plan.recommended is None:
        console.print(f"[bold red]no recommendation[/]: {escape(plan.reason)}", highlight=False)
        return
    console.print(
        f"[bold green]recommended[/]: {plan.recommended.layout.grid.name}. {escape(plan.reason)}."
    )
    if plan.recommended.time.traffic:
        _print_whole(console, _communication_table(plan.recommended))
    console.print(job, markup=False, highlight=False, soft_wrap=True, end="")


def _print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as it is, so that a narrow terminal breaks lines and loses no digit."""
    unbounded = console.options.update(width=10 * WIDTH)
    width = Measurement.get(console, unbounded, table).maximum
    segments = console.render(table, unbounded.update(width=width))
    console.print(Segments(segments), crop=False, end="")


def _refused(rows: Iterable[Candidate]) -> dict[str, list[str]]:
    """Reason -> the layouts that fit and are refused for it."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.fits and row.refusal:
            names.setdefault(row.refusal, []).append(row.layout.grid.name)
    return names


def shown(plan: Plan, asked: Candidate | None = None) -> list[Candidate]:
    """The recommended layout and the next best, the best one with each kind of parallelism, each
    strategy alone, and the layout that was asked for.
    """
    of_each_kind: dict[tuple[str, bool], Candidate] = {}
    for candidate in plan.candidates:
        kinds = candidate.layout.grid.kinds
        for kind in kinds:
            of_each_kind.setdefault((kind, False), candidate)
            if kinds == {candidate.layout.grid.strategy}:
                of_each_kind.setdefault((kind, True), candidate)
    best = [candidate for candidate in plan.candidates if candidate.eligible][: NEXT_BEST + 1]
    named = (plan.recommended, asked, *best, *of_each_kind.values())
    chosen = {candidate.layout: candidate for candidate in named if candidate is not None}
    order = {candidate.layout: place for place, candidate in enumerate(plan.candidates)}
    return sorted(chosen.values(), key=lambda c: (not c.fits, order.get(c.layout, 0)))


def as_json(plan: Plan, job: str, asked: Candidate | None = None) -> dict[str, Any]:
    """All candidates with all figures, in bytes and seconds."""
    question = plan.question
    return {
        "model": {**asdict(question.model), "parameters": question.model.parameters},
        "batch": asdict(question.batch),
        "cluster": asdict(question.cluster),
        "usableBytes": memory_estimate.usable(question.cluster.gpu),
        "asked": _record(plan, asked) if asked else None,
        "recommended": _record(plan, plan.recommended) if plan.recommended else None,
        "reason": plan.reason,
        "warning": mesh_cost.warning(question.cluster),
        "modelError": MODEL_ERROR,
        "job": job,
        "candidates": [_record(plan, candidate) for candidate in plan.candidates],
    }


def _record(plan: Plan, candidate: Candidate) -> dict[str, Any]:
    layout, time = candidate.layout, candidate.time
    return {
        "layout": layout.grid.name,
        **asdict(layout.grid),
        "microBatch": layout.samples(plan.question.batch),
        "microBatches": layout.micro_batches(plan.question.batch),
        "activationCheckpointing": layout.checkpointing,
        "memory": {**asdict(candidate.memory), "total": candidate.memory.total},
        "fits": candidate.fits,
        "refusal": candidate.refusal,
        "seconds": {
            "total": time.total,
            "compute": time.compute,
            "bubble": time.bubble,
            "update": time.update,
            "exposedCommunication": time.exposed,
        },
        "traffic": [asdict(part) for part in time.traffic],
        "modelFlopsUtilisation": time.utilisation(plan.question.cluster),
    }


def _question(question: Question) -> str:
    model, cluster, batch = question.model, question.cluster, question.batch
    return (
        f"[bold]{_parameters(model.parameters)} parameters[/] ({model.layers} layers x "
        f"{model.width} channels, "
        f"vocabulary {model.vocabulary}) on {cluster.nodes} x {cluster.gpus_per_node} "
        f"{cluster.gpu.name}, "
        f"{cluster.network_bandwidth * 8 / GIGA:.0f} Gb/s a machine\n"
        f"global batch {batch.samples} x {batch.sequence_length} tokens, {cluster.gpu.precision}"
    )


def _parameters(count: int) -> str:
    if count >= 10**12:
        return f"{count / 1e9:,.0f} billion"
    return f"{count / 1e9:.3g} billion" if count >= 10**9 else f"{count / 1e6:.3g} million"


def _mark(plan: Plan, candidate: Candidate, asked: Candidate | None) -> str:
    name = candidate.layout.grid.name
    if plan.recommended is not None and candidate.layout == plan.recommended.layout:
        return f"[bold green]{name} *[/]"
    return f"[bold]{name} <[/]" if asked is not None and candidate.layout == asked.layout else name


def _memory_table(plan: Plan, rows: list[Candidate], asked: Candidate | None) -> Table:
    limit = memory_estimate.usable(plan.question.cluster.gpu)
    unit = unit_for(min(row.memory.total for row in rows), _BYTES)
    title = f"{unit.name} per device, of {unit.of(limit)} that tensors may fill"
    table = _table(
        title, ("layout", "batch", "ckpt"), ("params", "grads", "optim", "activ", "work", "sum")
    )
    table.add_column("fits", no_wrap=True)
    for row in rows:
        needed, layout, batch = row.memory, row.layout, plan.question.batch
        parts = (
            needed.parameters,
            needed.gradients,
            needed.optimizer,
            needed.activations,
            needed.working,
        )
        table.add_row(
            _mark(plan, row, asked),
            f"{layout.micro_batches(batch)} x {layout.samples(batch)}",
            _CHECKPOINTING[layout.checkpointing],
            *(unit.of(part) for part in (*parts, needed.total)),
            _fits(row),
        )
    return table


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _fits(row: Candidate) -> str:
    if not row.fits:
        return "[red]no[/]"
    return "[yellow]refused[/]" if row.refusal else "[green]yes[/]"


def _time_table(plan: Plan, rows: list[Candidate], asked: Candidate | None) -> Table:
    clock = unit_for(min(row.time.total for row in rows), _SECONDS)
    unit = unit_for(max(row.time.sent("local") + row.time.sent("network") for row in rows), _BYTES)
    title = f"Time of a step in {clock.name}, and {unit.name} that a device sends in it"
    numbers = (
        "compute",
        "bubble",
        "waits",
        "step",
        "vs *",
        "MFU",
        "local",
        "network",
        "tok/s",
    )
    table = _table(title, ("layout",), numbers)
    for row in rows:
        time = row.time
        table.add_row(
            _mark(plan, row, asked),
            *(clock.of(part) for part in (time.compute, time.bubble, time.exposed, time.total)),
            _slower(plan, row),
            f"{time.utilisation(plan.question.cluster):.0%}",
            unit.of(time.sent("local")),
            unit.of(time.sent("network")),
            f"{plan.question.batch.tokens / time.total:,.0f}",
            style=None if row.fits else "dim",
        )
    return table


def _slower(plan: Plan, row: Candidate) -> str:
    """How much longer its step takes than that of the recommended layout."""
    if plan.recommended is None or row.layout == plan.recommended.layout:
        return "-"
    return f"{row.time.total / plan.recommended.time.total - 1:+.0%}"


def _communication_table(chosen: Candidate) -> Table:
    traffic = chosen.time.traffic
    clock = unit_for(max(part.seconds for part in traffic), _SECONDS)
    unit = unit_for(max(part.sent for part in traffic), _BYTES)
    title = f"Communication of {chosen.layout.grid.name}, per step and device"
    numbers = (f"{unit.name} sent", clock.name, "not hidden")
    table = _table(title, ("what", "collective", "over"), numbers)
    for part in traffic:
        amounts = (unit.of(part.sent), clock.of(part.seconds), clock.of(part.exposed))
        table.add_row(part.purpose, part.kind, part.link, *amounts)
    return table


def _assumptions(question: Question) -> str:
    efficiency = question.cluster.efficiency
    reserve = 0 if question.cluster.gpu.is_cpu else memory_estimate.DEVICE_RESERVE
    return (
        "batch: micro-batches x samples. ckpt: activation checkpointing. waits: communication that "
        "is not hidden.\nstep: with the optimizer's update. vs *: against the recommended layout; "
        f"less than {MODEL_ERROR:.0%} is inside\nthe error of the estimate.\n"
        f"Not for tensors: {memory_estimate.FRAGMENTATION:.0%} of the memory (fragmentation), "
        f"{reserve / GIGA:.0f} GB (context, NCCL).\n"
        f"Reached in computing: {_share(efficiency.compute)}.\n"
        f"On links in a machine: {_share(efficiency.local)}.\n"
        f"Between machines: {_share(efficiency.network)}.\n"
    )


def _share(share: Share) -> str:
    return f"{share.value:.0%} of the peak, {share.origin} ({share.source})"


def _comparison(plan: Plan, asked: Candidate) -> str:
    unit, clock = unit_for(asked.memory.total, _BYTES), unit_for(asked.time.total, _SECONDS)
    limit = unit.of(memory_estimate.usable(plan.question.cluster.gpu))
    reason = (
        f"{unit.of(asked.memory.total)} of {limit} {unit.name}, {clock.of(asked.time.total)} "
        f"{clock.name} a step"
    )
    word = "[green]fits[/]" if asked.fits else "[bold red]does not fit[/]"
    return f"[bold]the file's own layout[/] <, {asked.layout.grid.name}: {word} ({reason})"
