"""The demo: python -m demo up|down.

`up` trains a small GPT on a cluster of three nodes, pulls the plug of the node that holds rank 0, and checks that the
training did not suffer. CLUSTER chooses where: devcluster, kind, current or local.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from demo import installation, local, reference, story
from demo.checks import LOCAL, broken, promises, summary
from demo.errors import DemoError
from demo.facts import Facts
from demo.job import delete_all, manifest
from demo.picture.__main__ import picture
from demo.picture.data import Source
from demo.programs import chromium, prometheus
from demo.prometheus import Prometheus, scrape_config, stop_leftover
from demo.promql import Server, Window
from demo.screen import Screen
from demo.stages.choice import STAGES, choose
from demo.stages.devcluster import DevclusterStage
from demo.stages.kind import KindStage
from demo.stages.stage import Stage
from demo.targets import Discovery
from devcluster.errors import DevclusterError

OUTPUT = Path("build/demo")
SUMMARY = OUTPUT / "summary.json"
PICTURE = OUTPUT / "dashboard.png"
NAMESPACE = "demo"


@click.group()
def main() -> None:
    """Train, lose a node, go on."""


@main.command()
def up() -> None:
    """Play the demo and check it."""
    screen = Screen()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for old in (SUMMARY, PICTURE):
        old.unlink(missing_ok=True)
    try:
        kind, why = choose(os.environ.get("CLUSTER"))
        screen.title(f"Playing on: {kind}, since {why}")
        kept = play_locally(screen) if kind == LOCAL else play(kind, screen)
    except (DemoError, DevclusterError) as error:
        screen.tell(f"The demo failed: {error}", "bold red")
        sys.exit(1)
    sys.exit(0 if kept else 1)


@main.command()
def down() -> None:
    """Remove what the demo made."""
    screen = Screen()
    try:
        stop_leftover((OUTPUT / "prometheus").absolute())
        with screen.step("Removing the clusters of the demo"):
            DevclusterStage.down()
            KindStage.down()
    except DemoError as error:
        sys.exit(f"The demo could not be removed: {error}")


def play_locally(screen: Screen) -> bool:
    """Play without a cluster; whether all promises were kept. Raises DemoError."""
    return judge(local.play(OUTPUT, screen), screen)


def play(kind: str, screen: Screen) -> bool:
    """Play on a cluster, and draw the dashboard with what Prometheus saw; whether all promises were kept.

    Raises DemoError, also when a query of the dashboard has no data.
    """
    with screen.step("Prometheus and Chromium, to show the run with"):
        prometheus()
        chromium()
    stage = STAGES[kind](screen)
    built = installation.build_images(screen)
    installation.install(stage, built, screen)
    installation.make_namespace(stage, NAMESPACE)
    delete_all(stage.kubectl, NAMESPACE)
    undisturbed = reference.losses(stage, NAMESPACE, built["trainer"], screen)
    with monitored(stage) as server:
        began = time.time()
        facts = story.tell(stage, kind, NAMESPACE, undisturbed, screen)
        window = Window.of(began, time.time())
        kept = judge(facts, screen)
        with screen.step(f"The picture of the run: {PICTURE}"):
            variables = {"namespace": NAMESPACE, "trainingjob": manifest()["metadata"]["name"]}
            picture(Source(server, window, variables), PICTURE)
    return kept


@contextmanager
def monitored(stage: Stage) -> Iterator[Server]:
    """A Prometheus that scrapes the stage meanwhile, with no data from before."""
    folder = (OUTPUT / "prometheus").absolute()
    stop_leftover(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    targets = folder / "targets.json"
    with stage.route() as route, Discovery(stage.kubectl, targets, route):
        monitor = Prometheus.start(folder, scrape_config(targets))
        try:
            yield monitor.server
        finally:
            monitor.stop()


def judge(facts: Facts, screen: Screen) -> bool:
    """Tell which promises were kept, and write the summary; whether all were."""
    failed = broken(facts)
    screen.title("What was promised")
    for check in promises(facts):
        mark, style = ("no ", "bold red") if check in failed else ("yes", "green")
        screen.tell(f"{mark}  {check.sentence}: {check.figures(facts)}", style)
    SUMMARY.write_text(json.dumps(summary(facts), indent=2) + "\n")
    screen.tell(f"The figures are in {SUMMARY}")
    for check in failed:
        screen.tell(f"The demo failed, since this is not so: {check.sentence}", "bold red")
    return not failed


if __name__ == "__main__":
    main()
