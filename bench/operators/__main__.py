"""Jobs of eight workers on a real control plane whose nodes kwok simulates.

    make bench NAME=operators ARGS="--case 100x8"

Regroup's operator, Kubeflow Trainer v2 with JobSet, and the floor each have a cluster of their own,
one after another. The coordinators of Regroup's jobs are stubs that speak the protocol and make a
step each second. All runs in a network namespace of its own, in which pods' addresses are local: it
needs root, or user namespaces. Clients have open limits of requests, those of the subjects that end
with -stock the limits that they come with.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench import harness
from bench.operators import programs
from bench.operators.cluster import POD_ADDRESSES
from bench.operators.goals import judged
from bench.operators.operator_course import STOCK, UNITS, OperatorSize, measure
from bench.operators.tables import tables
from devcluster.processes import run

NAME = "operator"
INSIDE = "REGROUP_BENCH_NAMESPACE"
"""Set inside the network namespace."""
CASES = {
    "1x8": OperatorSize(jobs=10, idle_seconds=30, replacements=10, one_by_one=True),
    "100x8": OperatorSize(jobs=100, idle_seconds=60, replacements=20),
    "300x8": OperatorSize(jobs=300, idle_seconds=60, replacements=100),
    "1000x8": OperatorSize(jobs=1000, idle_seconds=600, replacements=100),
}
QUICK = OperatorSize(jobs=1, idle_seconds=5, replacements=2)
ALL = ("regroup", "trainer-v2", "floor", "regroup-stock", "trainer-v2-stock")
TABLE_WIDTH = 140
THEIR_REPLACEMENTS = 3
"""At most. One takes them ten seconds, and each further one of the same job twice as long."""
SETTINGS = (
    "etcd, kube-apiserver, controllers, scheduler and kwok on this machine, beside the operators; "
    "Regroup has the account and the FlowSchema of its chart, Trainer and JobSet have every right; "
    "coordinators are stubs; CPU with that of Kubernetes' controllers; 1x8: ten jobs, one at a time"
)


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only these.")
@click.option("--subject", "subjects", multiple=True, type=click.Choice(ALL), help="Only these.")
@click.option("--quick", is_flag=True, help="One job, to see that it works.")
@click.option("--output", type=click.Path(path_type=Path), help=harness.OUTPUT_HELP)
def main(
    cases: tuple[str, ...], subjects: tuple[str, ...], quick: bool, output: Path | None
) -> None:
    """Measure operators, one after another. Exits with 1 when the course of one ends early."""
    _enter_namespace(subjects or ALL)
    cases = ("1x8",) if quick else cases or tuple(CASES)
    folder, are_whole = output or harness.folder_of(quick), True
    results = harness.Results(folder, NAME, quick, adds=True, place=_place)
    for case in cases:
        for subject in subjects or ALL:
            rows, is_whole = _measured(case, subject, QUICK if quick else CASES[case])
            results.add(judged(harness.merged(results.rows, rows)))
            are_whole &= is_whole
    for table in tables(results.rows, cases):
        Console(highlight=False, width=TABLE_WIDTH).print(table)
    sys.exit(0 if are_whole else 1)


def _measured(case: str, subject: str, size: OperatorSize) -> tuple[list[harness.Row], bool]:
    """Its rows, and whether they are all."""
    size, begun = _size_for(subject, size), time.monotonic()
    outcome = asyncio.run(measure(size, subject, click.echo))
    click.echo(f"{case} {subject}: {harness.shown(outcome.found)}")
    by_who: Counter[str] = Counter()
    for write, count in outcome.writes.items():
        by_who[f"{write.who} {write.verb} {write.resource}"] += count
    for what, count in by_who.most_common():
        click.echo(f"  {count / size.jobs:6.2f} {what}")
    ending = "" if outcome.is_whole else "; ended early"
    click.echo(f"{case} {subject} took {time.monotonic() - begun:.0f} s{ending}")
    plan = harness.Plan(NAME, (case,), (subject,), UNITS, 1, lambda _case, _subject: SETTINGS)
    return harness.rows(plan, case, subject, [outcome.found]), outcome.is_whole


def _size_for(subject: str, size: OperatorSize) -> OperatorSize:
    """What is measured of a subject."""
    if subject.endswith(STOCK):
        # The limits of clients matter while jobs are created.
        size = replace(size, idle_seconds=min(size.idle_seconds, 10), restarts=False)
    if subject == "regroup":
        return size
    replacements = min(size.jobs, THEIR_REPLACEMENTS)
    return replace(size, idle_seconds=min(size.idle_seconds, 60), replacements=replacements)


def _place(row: harness.Row) -> tuple[int, int]:
    return list(CASES).index(row.case), ALL.index(row.subject)


def _modules(subjects: Sequence[str]) -> tuple[programs.Module, ...]:
    """What is built from Go modules for these subjects."""
    theirs = any(subject.startswith("trainer-v2") for subject in subjects)
    return (programs.KWOK, *((programs.JOBSET, programs.TRAINER) if theirs else ()))


def _enter_namespace(subjects: Sequence[str]) -> None:
    """Start this program again in a network namespace, unless it runs in one already.

    What the subjects need is built before: from the namespace no Go module can be downloaded.
    """
    if INSIDE not in os.environ:
        for module in _modules(subjects):
            programs.build(module, click.echo)
        as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        os.environ[INSIDE] = "1"
        again = (sys.executable, "-m", "bench.operators", *sys.argv[1:])
        os.execvp("unshare", ("unshare", "--net", *as_root, "--", *again))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a watch of each coordinator
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "route", "replace", "local", POD_ADDRESSES, "dev", "lo"])


if __name__ == "__main__":
    main(prog_name="python -m bench.operators")
