"""Causes alerts on a devcluster: python -m demo.caused_alerts [ALERT ...]

Writes docs/runbooks/fired-alerts.md. Ends with 1 where an alert was not as the table of
`demo.caused_alerts.causes` says. With names of alerts, only these are caused, and the page has what
was seen of the others before. Needs root.
"""

from __future__ import annotations

import shutil
import sys

import click

from demo.caused_alerts import jobs
from demo.caused_alerts.alert_course import AlertCourse
from demo.caused_alerts.alert_page import page
from demo.caused_alerts.causes import BY_NAME, CAUSES, Cause
from demo.caused_alerts.sighting import Sighting, problems, read_sighting
from demo.errors import DemoError
from demo.installation import ROOT
from demo.screen import Screen
from demo.stages.devcluster import DevclusterStage
from demo.ten_faults import record
from demo.ten_faults.scene import NAMESPACE, Scene, monitored, prepared
from devcluster.errors import DevclusterError

CLUSTER = "alerts"
OUTPUT = ROOT / "build/fired-alerts"
SEEN = OUTPUT / "seen.json"
PAGE = ROOT / "docs/runbooks/fired-alerts.md"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[ALERT]...")
@click.option("--keep", is_flag=True, help="Leave the cluster as it is, for another run.")
@click.option("--installed", is_flag=True, help="Use such a cluster, and install nothing.")
def main(names: tuple[str, ...], keep: bool, installed: bool) -> None:
    """Cause alerts and judge how they arrive."""
    screen = Screen()
    chosen = [cause for cause in CAUSES if not names or cause.slug in names]
    try:
        with prepared(CLUSTER, screen, OUTPUT, keep=keep, installed=installed) as stage:
            observe(stage, chosen, screen)
    except (DemoError, DevclusterError) as error:
        sys.exit(f"The alerts could not be caused: {error}")
    found = record.read_each(SEEN, read_sighting)
    PAGE.write_text(page(found))
    screen.report(f"The page is {PAGE.relative_to(ROOT)}")
    sys.exit(1 if any(problems(one.awaited, found[one.slug]) for one in chosen) else 0)


def observe(stage: DevclusterStage, chosen: list[Cause], screen: Screen) -> None:
    """Write to SEEN what is seen of these alerts, one after another. Raises DemoError."""
    folder = OUTPUT / "monitoring"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with monitored(stage, folder) as (server, manager):
        scene = Scene(stage, server, manager, screen)
        loop = jobs.program(jobs.LOOP_PROGRAM, "loop.py"), jobs.loop()
        stage.kubectl.apply(*loop, namespace=NAMESPACE)
        for cause in chosen:
            screen.title(f"{cause.alert}: {cause.done}")
            seen = AlertCourse(scene, cause).run()
            report(cause, seen, screen)
            record.write(SEEN, record.read_each(SEEN, read_sighting) | {cause.slug: seen})
            if cause.created:
                scene.must(f"kubectl delete trainingjob {' '.join(cause.created)}")


def report(cause: Cause, seen: Sighting, screen: Screen) -> None:
    """Print what was seen."""
    screen.report(f"fired after {seen.fired_after}, ended after {seen.ended_after}", "dim")
    screen.report(f"{dict(seen.labels)}: {seen.summary}", "dim")
    screen.report(f"exit code {seen.look.exit_code}\n{seen.look.line}\n{seen.look.why}")
    wrong = problems(cause.awaited, seen)
    for problem in wrong:
        screen.report(f"{cause.alert}: {problem}", "bold red")
    if not wrong:
        screen.report(f"{cause.alert}: as it should be", "green")


if __name__ == "__main__":
    main()
