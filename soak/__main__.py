"""`python -m soak run` injects seeded faults, `judge` judges an earlier run anew, and `merge` joins
the results of runs.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench import harness
from demo.errors import DemoError
from demo.screen import Screen
from devcluster.errors import DevclusterError
from soak import draw, evidence, product, reference, results
from soak.campaign import Campaign
from soak.checker import Verdict, judge
from soak.kinds import FAULTS, JOBS
from soak.memory_growth import Growth, leaks, of_log
from soak.reference import Reference
from soak.site import Site

BUILD = product.ROOT / "build" / "soak"


@click.group()
def main() -> None:
    """Seeded random faults on a real cluster, judged by an independent checker."""


@main.command()
@click.option("--seed", type=int, required=True, help="Equal seeds draw equal faults.")
@click.option("--faults", type=click.IntRange(1), required=True, help="How many are drawn.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="End after so long.")
@click.option("--kind", "only", multiple=True, help="Draw only these kinds of faults.")
@click.option("--job", "only_jobs", multiple=True, help="Draw only these kinds of jobs.")
@click.option("--keep-cluster", is_flag=True, help="Leave the cluster up at the end.")
def run(
    seed: int,
    faults: int,
    hours: float | None,
    only: tuple[str, ...],
    only_jobs: tuple[str, ...],
    keep_cluster: bool,
) -> None:
    """Inject faults; exits with 1 when the checker finds something. Needs root.

    Ctrl-C and SIGTERM end it: what was judged is written, and the cluster is taken down.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kinds = [kind for kind in FAULTS if not only or kind.name in only]
    jobs = [kind for kind in JOBS if not only_jobs or kind.name in only_jobs]
    try:
        episodes = draw.plan(seed, faults, kinds, jobs)
        campaign = _campaign(seed, episodes, time.monotonic() + (hours or 1e6) * 3600, keep_cluster)
    except (DemoError, DevclusterError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    _end(campaign.verdicts, _memory(campaign.log))


def _end(verdicts: Sequence[Verdict], memory: Mapping[str, Growth]) -> None:
    """Exits with 1 when something was found."""
    found = list(leaks(memory))
    for sentence in found:
        click.echo(sentence)
    if found or not all(verdict.is_clean for verdict in verdicts):
        sys.exit(1)


def _campaign(
    seed: int, episodes: tuple[draw.Episode, ...], deadline: float, keep_cluster: bool
) -> Campaign:
    log = _new_log(seed)
    screen, commit = Screen(), product.commit()
    if commit.endswith(product.DIRTY):
        click.echo("files differ from their commit: no fault counts as after the last change")
    site = Site.up(f"soak-{seed}", f"soak-{seed}-{int(time.time()) % 10**6}", screen)
    log.touch()
    campaign = Campaign(site, log, screen.report, Reference(site, screen.report))
    try:
        campaign.run(episodes, deadline)
    finally:
        _finish(seed, commit, campaign, sum(len(episode.faults) for episode in episodes))
        if not keep_cluster:
            site.cluster.down()
    return campaign


def _new_log(seed: int) -> Path:
    """Raises ValueError where a run with this seed has one: no run is to be lost."""
    log = BUILD / f"seed-{seed}.jsonl"
    if log.exists() or log.with_suffix("").exists():
        raise ValueError(
            f"{log} is of a former run with seed {seed}: choose another seed, or move "
            f"{log.with_suffix('')}* elsewhere"
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    return log


def _memory(log: Path) -> Mapping[str, Growth]:
    with log.open() as lines:
        return of_log(lines)


def _finish(seed: int, commit: str, campaign: Campaign, drawn: int) -> None:
    memory = _memory(campaign.log)
    why = f"the run ended before its episode was judged: {sys.exception()!r}"
    figures = results.metrics(len(campaign.struck), campaign.verdicts, memory)
    part = {
        "seed": seed,
        "commit": commit,
        "checker": commit,
        "metrics": figures,
        "memory": results.sums(memory),
        "drawn": drawn,
        "missed": campaign.missed,
        "unjudged": [{**fault, "reason": why} for fault in campaign.unjudged],
        "faults": campaign.struck,
    }
    file = campaign.log.with_suffix(".json")
    results.write_part(file, part)
    _print(part)
    click.echo(f"written to {file}; the log is {campaign.log}")


def _print(part: Mapping[str, Any]) -> None:
    rows = harness.rows(results.plan([part]), f"seed-{part['seed']}", "regroup", [part["metrics"]])
    width = max(Console().width, harness.TABLE_WIDTH)
    Console(highlight=False, width=width).print(harness.table(results.NAME, rows))


@main.command("judge")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def judge_anew(folder: Path) -> None:
    """Judge what a run has kept in FOLDER, build/soak/seed-N, by the checker of today, and write
    the figures to the part of results beside it; exits with 1 when the checker finds something.
    """
    try:
        verdicts, memory = _verdicts(folder), _memory(folder.with_suffix(".jsonl"))
        part = results.judged_anew(folder.with_suffix(".json"), verdicts, memory, product.commit())
    except (OSError, ValueError, KeyError) as error:
        raise click.ClickException(f"cannot judge {folder}: {error!r}") from error
    _print(part)
    _end(verdicts, memory)


def _verdicts(folder: Path) -> list[Verdict]:
    """Raises ValueError where no job was kept."""
    references, verdicts = reference.load_kept(folder), []
    for job in evidence.kept_jobs(folder):
        verdicts.append(judge(evidence.read(job, references)))
        click.echo(verdicts[-1])
    if not verdicts:
        raise ValueError(f"no job has a file {evidence.FILE}")
    return verdicts


@main.command()
@click.argument("parts", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=harness.RESULTS)
def merge(parts: tuple[Path, ...], output: Path) -> None:
    """Merge the results of seeds into one file of results."""
    try:
        file = results.merge(parts, output, product.is_same)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    for sentence in results.summary(json.loads(file.read_text())):
        click.echo(sentence)
    click.echo(f"written to {file}")


if __name__ == "__main__":
    main(prog_name="python -m soak")
