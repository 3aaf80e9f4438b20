"""The demo: python -m demo up|down.

`up` trains a small GPT on a cluster of three nodes and cuts the power of the node that holds rank
0. It then checks that the training did not suffer. The variable CLUSTER chooses the cluster:
devcluster, kind, current or local.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import click

from demo import installation, job_dashboard, local, reference, story
from demo.checks import LOCAL, broken, promises, summary
from demo.errors import DemoError
from demo.facts import Facts
from demo.job import delete_all, manifest
from demo.picture.__main__ import picture
from demo.picture.data import Source
from demo.programs import chromium, prometheus
from demo.prometheus import stop_leftover
from demo.promql import Server, Window
from demo.scraping import scraped
from demo.screen import Screen
from demo.stages.choice import STAGES, choose
from demo.stages.devcluster import DevclusterStage
from demo.stages.kind import KindStage
from demo.stages.stage import Stage
from devcluster.errors import DevclusterError

OUTPUT = Path("build/demo")
SUMMARY = OUTPUT / "summary.json"
PICTURE = OUTPUT / "dashboard.png"
NAMESPACE = "demo"


@click.group()
def main() -> None:
    """Train a model, lose a node, continue."""


@main.command()
def up() -> None:
    """Run the demo and check its promises."""
    screen = Screen()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for old in (SUMMARY, PICTURE):
        old.unlink(missing_ok=True)
    try:
        kind, why = choose(os.environ.get("CLUSTER"))
        screen.title(f"Running on: {kind}, because {why}")
        succeeded = run_locally(screen) if kind == LOCAL else run_on_cluster(kind, screen)
    except (DemoError, DevclusterError) as error:
        screen.report(f"The demo failed: {error}", "bold red")
        sys.exit(1)
    sys.exit(0 if succeeded else 1)


@main.command()
def down() -> None:
    """Remove the clusters and processes of the demo."""
    screen = Screen()
    try:
        stop_leftover((OUTPUT / "prometheus").absolute())
        with screen.step("Removing the clusters of the demo"):
            DevclusterStage.down()
            KindStage.down()
    except DemoError as error:
        sys.exit(f"The demo could not be removed: {error}")


def run_locally(screen: Screen) -> bool:
    """Run without a cluster. Returns whether all promises hold. Raises DemoError."""
    return report_checks(local.run_demo(OUTPUT, screen), screen)


def run_on_cluster(kind: str, screen: Screen) -> bool:
    """Run on a cluster and draw the dashboard with the data of Prometheus. Returns whether all
    promises hold.

    Raises DemoError, also when a query of the dashboard has no data.
    """
    stage, built = prepare(kind, screen)
    installation.install(stage, built, screen)
    installation.make_namespace(stage, NAMESPACE)
    delete_all(stage.kubectl, NAMESPACE)
    undisturbed = reference.losses(stage, NAMESPACE, built["trainer"], screen)
    with monitored(stage) as server:
        began = time.time()
        facts = story.run(stage, kind, NAMESPACE, undisturbed, screen)
        window = Window.of(began, time.time())
        succeeded = report_checks(facts, screen)
        with screen.step(f"Drawing the dashboard: {PICTURE}"):
            variables = {"namespace": NAMESPACE, "trainingjob": manifest()["metadata"]["name"]}
            picture(job_dashboard.build(), Source(server, window, variables), PICTURE)
    return succeeded


def prepare(kind: str, screen: Screen) -> tuple[Stage, dict[str, installation.Image]]:
    """Prepare the cluster and the images. The programs that show the run are fetched at the same
    time.

    Raises DemoError.
    """
    with ThreadPoolExecutor() as pool:
        programs = pool.submit(fetch_programs, screen)
        images = pool.submit(installation.build_images, screen)
        stage = pool.submit(STAGES[kind], screen)
        programs.result()
        return stage.result(), images.result()


def fetch_programs(screen: Screen) -> None:
    """Fetch Prometheus and Chromium. Raises DemoError."""
    with screen.step("Fetching Prometheus and Chromium, which show the run"):
        prometheus()
        chromium()


@contextmanager
def monitored(stage: Stage) -> Iterator[Server]:
    """A Prometheus that scrapes the stage as the chart's monitors say, while the block runs. It
    starts without old data.
    """
    folder = (OUTPUT / "prometheus").absolute()
    stop_leftover(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with scraped(stage, folder) as server:
        yield server


def report_checks(facts: Facts, screen: Screen) -> bool:
    """Report which promises hold and write the summary. Returns whether all hold."""
    failed = broken(facts)
    screen.title("Promises")
    for check in promises(facts):
        mark, style = ("no ", "bold red") if check in failed else ("yes", "green")
        screen.report(f"{mark}  {check.sentence}: {check.figures(facts)}", style)
    SUMMARY.write_text(json.dumps(summary(facts), indent=2) + "\n")
    screen.report(f"The figures are in {SUMMARY}")
    for check in failed:
        screen.report(f"The demo failed. This promise does not hold: {check.sentence}", "bold red")
    return not failed


if __name__ == "__main__":
    main()
