"""Breaks a job in ten ways on a devcluster: python -m demo.ten_faults [FAULT ...]

Writes docs/tasks/ten-faults.md. Ends with 1 where a user was not shown what the table of
`demo.ten_faults.expectations` says. With names of faults, only these are tried, and the page has
what was observed of the others before. Needs root.
"""

from __future__ import annotations

import shutil
import sys
import time
from datetime import UTC, datetime

import click

from demo import job_dashboard
from demo.errors import DemoError
from demo.installation import ROOT
from demo.picture.__main__ import picture
from demo.picture.data import Source
from demo.promql import Server, Window
from demo.screen import Screen
from demo.stages.devcluster import DevclusterStage
from demo.ten_faults import record, strikes
from demo.ten_faults.course import Course, wait_whole
from demo.ten_faults.expectations import BY_NAME, FAULTS, Fault
from demo.ten_faults.observation import Observed, problems
from demo.ten_faults.report_page import page
from demo.ten_faults.scene import NAMESPACE, Scene, monitored, prepared
from devcluster.errors import DevclusterError

CLUSTER = "faults"
OUTPUT = ROOT / "build/ten-faults"
OBSERVED = "observed.json"
PAGE = ROOT / "docs/tasks/ten-faults.md"
PICTURE = ROOT / "docs/pictures/ten-faults.png"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[FAULT]...")
@click.option("--keep", is_flag=True, help="Leave the cluster as it is, for another run.")
@click.option("--installed", is_flag=True, help="Use such a cluster, and install nothing.")
def main(names: tuple[str, ...], keep: bool, installed: bool) -> None:
    """Break a job and judge what a user is shown of it."""
    screen = Screen()
    chosen = [fault for fault in FAULTS if not names or fault.slug in names]
    try:
        with prepared(CLUSTER, screen, OUTPUT, keep=keep, installed=installed) as stage:
            observe(stage, chosen, screen)
    except (DemoError, DevclusterError) as error:
        sys.exit(f"The faults could not be tried: {error}")
    found = record.read(OUTPUT / OBSERVED)
    PAGE.write_text(page(found, f"../pictures/{PICTURE.name}" if PICTURE.exists() else ""))
    screen.report(f"The page is {PAGE.relative_to(ROOT)}")
    sys.exit(1 if any(problems(one.expected, found[one.slug]) for one in chosen) else 0)


def observe(stage: DevclusterStage, chosen: list[Fault], screen: Screen) -> None:
    """Write to OBSERVED what is seen of these faults, one after another. Raises DemoError."""
    folder, file = OUTPUT / "monitoring", OUTPUT / OBSERVED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with monitored(stage, folder) as (server, manager):
        began = time.time()
        run = f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M} UTC"
        scene = Scene(stage, server, manager, screen)
        stage.kubectl.apply(strikes.sample(), namespace=NAMESPACE)
        for fault in chosen:
            with screen.step(f"Waiting until {strikes.SAMPLE} trains and no alert is about it"):
                wait_whole(scene, strikes.SAMPLE)
            screen.title(f"{fault.name}: {fault.done}")
            seen = Course(scene, fault, run).run()
            report(fault, seen, screen)
            record.write(file, record.read(file) | {fault.slug: seen})
            if fault.job != strikes.SAMPLE:
                scene.must(f"kubectl delete trainingjob {fault.job}")
        if len(chosen) == len(FAULTS):
            draw(server, Window.of(began, time.time()), screen)


def draw(server: Server, window: Window, screen: Screen) -> None:
    """Draw the dashboard of the sample's job over the run. A panel may have no data: which series
    there are depends on the faults. The page does without a picture that cannot be drawn.
    """
    variables = {"namespace": NAMESPACE, "trainingjob": strikes.SAMPLE}
    source = Source(server, window, variables, may_lack=frozenset({"trainingjob_"}))
    try:
        picture(job_dashboard.build(), source, OUTPUT / PICTURE.name)
    except DemoError as error:
        screen.report(f"There is no picture: {error}", "red")
        PICTURE.unlink(missing_ok=True)  # it shows a former run
        return
    shutil.copy(OUTPUT / PICTURE.name, PICTURE)


def report(fault: Fault, seen: Observed, screen: Screen) -> None:
    """Print what was observed."""
    screen.report(f"alerts {dict(seen.alerts)}, shown after {seen.shown_after}", "dim")
    for look in (seen.height, seen.after):
        screen.report(f"{look.seconds:.1f} s: exit code {look.exit_code}\n{look.line}\n{look.why}")
    wrong = problems(fault.expected, seen)
    for problem in wrong:
        screen.report(f"{fault.name}: {problem}", "bold red")
    if not wrong:
        screen.report(f"{fault.name}: as it should be", "green")


if __name__ == "__main__":
    main()
