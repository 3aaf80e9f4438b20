"""Hostile jobs at a real API server and a real operator.

    make fuzz SEED=1 JOBS=2000 TEMPLATES=6000

The jobs are drawn along the schema of the definition (tests/support/hostile_specs.py), with
extremes and what lies beyond. In each wave some are as large as can be, and one only loses workers
(tests/support/large_specs.py). Those that the API server refuses do not count. Of each template
that our validation takes, the API server judges the pods. The hostile tenant is as fast as the API
server answers its clients, and an ordinary tenant beside it shows how soon the operator acts. The
operator is started again beside the thousand jobs of the largest wave.

Ends with 1 when the operator dies or logs an error that it does not know, when a refusal does not
name field and value, when the API server refuses what our validation took, when a job shows
nothing, or when the ordinary tenant waits more than twice as long (p99) as in the pauses of the
same run. Kinds of refusals that are known (bench/fuzz/server_refusals.py) are only counted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from bench import harness
from bench.fuzz.fuzz_course import MOST_RATIO, UNITS, WAVES, run
from bench.fuzz.size import CLIENTS, FuzzSize
from devcluster.apiserver import ApiServer
from tests.support.kube_api import Api, install_definition

NAME = "fuzz"
REFUSALS = "refusals.jsonl"
"""What the API server alone refused: kinds, its answers, and what was given."""
SAMPLES = 10
"""Before each wave, and beside it at least."""
SETTINGS = (
    "etcd, kube-apiserver and operator on this machine; a hostile tenant of {} clients without a "
    f"pause, in waves of {min(WAVES)} drawn jobs, and of {max(WAVES)} beside which the operator "
    "starts again; in each wave jobs of up to {} workers, one of which loses workers, and specs as "
    "large as are read; the ordinary tenant, no administrator either, is measured until all of a "
    "wave have their answer; templates rendered in this process, their pods sent as dry runs"
)


@click.command()
@click.option("--seed", type=int, default=1, help="Equal seeds draw equal jobs.")
@click.option("--jobs", type=click.IntRange(1), default=2000, help="That the API server takes.")
@click.option("--templates", type=click.IntRange(0), default=6000)
@click.option("--clients", type=click.IntRange(1), default=CLIENTS, help="Of the hostile tenant.")
@click.option("--minutes", type=click.FloatRange(0), default=45.0, help="No wave begins later.")
@click.option("--output", type=click.Path(path_type=Path), default=harness.RESULTS)
def main(seed: int, jobs: int, templates: int, clients: int, minutes: float, output: Path) -> None:
    """Draw jobs and templates; exits with 1 when something is found."""
    case, folder = f"seed-{seed}", Path(tempfile.mkdtemp(prefix="regroup-fuzz-"))
    size = FuzzSize(seed, jobs, templates, SAMPLES, clients, minutes * 60)
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        install_definition(api)
        outcome = run(api, folder, size, click.echo)
    figures = outcome.metrics()
    outcome.findings.write_refusals(folder / REFUSALS)
    settings = SETTINGS.format(clients, size.workers)
    plan = harness.Plan(NAME, (case,), ("regroup",), UNITS, 1, lambda _case, _subject: settings)
    rows = harness.rows(plan, case, "regroup", [figures])
    harness.Results(output, NAME, quick=False, adds=True).add(rows)
    Console(highlight=False, width=harness.TABLE_WIDTH).print(harness.table(NAME, rows))
    click.echo(
        f"written to {output / NAME}.json; the operator's log and {REFUSALS} are in {folder}"
    )
    problems = outcome.problems()
    if (ratio := figures["p99_ratio"] or 0.0) > MOST_RATIO:
        problems.append(f"p99_ratio is {ratio:.2f}, and {MOST_RATIO} is allowed")
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.fuzz")
