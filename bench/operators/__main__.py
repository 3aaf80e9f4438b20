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
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from bench import harness
from bench.operators import programs
from bench.operators.cluster import POD_ADDRESSES
from bench.operators.course import UNITS, Size, measure
from devcluster.processes import run

NAME = "operator"
INSIDE = "REGROUP_BENCH_NAMESPACE"
"""Set inside the network namespace."""
CASES = {
    "1x8": Size(jobs=1, idle_seconds=30, replacements=10),
    "100x8": Size(jobs=100, idle_seconds=60, replacements=20),
    "300x8": Size(jobs=300, idle_seconds=60, replacements=100),
    "1000x8": Size(jobs=1000, idle_seconds=600, replacements=100),
}
ALL = ("regroup", "trainer-v2", "floor", "regroup-stock", "trainer-v2-stock")
THEIR_REPLACEMENTS = 3
"""Each takes them ten seconds."""
SETTINGS = (
    "etcd, kube-apiserver, controllers, scheduler and kwok on this machine, beside the operators; "
    "coordinators are stubs; CPU with that of Kubernetes' controllers"
)


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only these.")
@click.option("--subject", "subjects", multiple=True, type=click.Choice(ALL))
@click.option("--quick", is_flag=True, help="One job, to see that it works.")
@click.option("--output", type=click.Path(path_type=Path), default=harness.RESULTS)
def main(cases: tuple[str, ...], subjects: tuple[str, ...], quick: bool, output: Path) -> None:
    """Measure operators, one after another."""
    _enter_namespace(subjects or ALL)
    for case in ("1x8",) if quick else cases or tuple(CASES):
        rows: list[harness.Row] = []
        for subject in subjects or ALL:
            rows += _measured(case, subject)
        found = harness.merged(harness.written(output / f"{NAME}.json"), rows)
        file = harness.write(output, NAME, found, quick=quick)
        Console(highlight=False, width=harness.TABLE_WIDTH).print(harness.table(NAME, rows))
        click.echo(f"written to {file}")


def _measured(case: str, subject: str) -> list[harness.Row]:
    size = CASES[case]
    if not subject.startswith("regroup"):
        size = Size(size.jobs, min(size.idle_seconds, 60), THEIR_REPLACEMENTS)
    values, writes = asyncio.run(measure(size, subject, click.echo))
    click.echo(f"{case} {subject}: {harness.shown(values)}")
    by_who: Counter[str] = Counter()
    for write, count in writes.items():
        by_who[f"{write.who} {write.verb} {write.resource}"] += count
    for what, count in by_who.most_common():
        click.echo(f"  {count / size.jobs:6.2f} {what}")
    plan = harness.Plan(NAME, (case,), (subject,), UNITS, 1, lambda _case, _subject: SETTINGS)
    return harness.rows(plan, case, subject, [values])


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
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "route", "replace", "local", POD_ADDRESSES, "dev", "lo"])


if __name__ == "__main__":
    main(prog_name="python -m bench.operators")
