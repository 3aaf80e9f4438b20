"""python -m demo.walkthrough: walk through the documentation as a new user, on a fresh cluster.

It writes docs/start/walkthrough.md with two pictures. The exit code is 1 when a step fails, and the
page then stays as it was. What was typed in each step is in build/walkthrough.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from demo.errors import DemoError
from demo.installation import ROOT, Image, build_images, define_monitors, make_namespace
from demo.kubectl import Kubectl
from demo.programs import chromium
from demo.screen import Screen
from demo.stages.devcluster import DevclusterStage
from demo.walkthrough.cells import CONTINUED
from demo.walkthrough.notebook import notebook
from demo.walkthrough.steps import NAMESPACE, STEPS, Walk, renamed
from demo.walkthrough.terminal import Terminal
from demo.walkthrough.transcript import Transcript
from devcluster.errors import DevclusterError
from devcluster.removal import remove

NAME = "walkthrough"
OUTPUT = ROOT / "build/walkthrough"
PAGE = ROOT / "docs/start/walkthrough.md"
PICTURES = ROOT / "docs/pictures"
INTRODUCTION = """\
# A walk through the documentation

<!-- Written by `make walkthrough`. -->

This is a new user's way on a fresh cluster. First come the installation, the monitors and the
dashboards. Then a function of a notebook becomes a job, which the user watches, resizes, suspends
and resumes. The user loads and exports its weights, and converts a PyTorchJob. In the end the
release is upgraded and uninstalled.

`make walkthrough` does all of this, on a cluster of three nodes that it makes on one machine. It
types the commands of the linked pages, checks what they do, and writes this page. Long outputs are
shortened.
"""


@click.command()
@click.option("--name", default=NAME, show_default=True, help="Name of the devcluster.")
@click.option("--keep", is_flag=True, help="Leave the cluster up at the end.")
@click.option(
    "--from",
    "first",
    type=click.IntRange(1, len(STEPS)),
    default=1,
    help="Go on at this step, on the cluster that a walk with --keep has left.",
)
def main(name: str, keep: bool, first: int) -> None:
    """Walk through the documentation on a fresh cluster, and write the page."""
    screen = Screen()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    try:
        chromium()
        walk_on_cluster(name, screen, first, keep=keep)
    except (DemoError, DevclusterError) as error:
        screen.report(f"The walk-through failed: {error}", "bold red")
        sys.exit(1)
    publish()
    screen.report(f"All steps hold. The page is {PAGE.relative_to(ROOT)}", "bold green")


def walk_on_cluster(name: str, screen: Screen, first: int, *, keep: bool) -> None:
    """Make the cluster, walk, and remove the cluster. Raises DemoError."""
    images = build_images(screen)
    if first == 1:
        remove(name)
    stage = DevclusterStage.up(screen, name)
    try:
        if first == 1:
            both = [*images.values(), *renamed(images).values()]
            stage.load({image.name: image.path for image in both}, screen)
            make_namespace(stage, NAMESPACE)
            define_monitors(stage.kubectl)
        with tempfile.TemporaryDirectory() as folder:
            walk_in(Path(folder), stage, images, screen, first)
    finally:
        if not keep:
            stage.cluster.down()


def walk_in(
    folder: Path, stage: DevclusterStage, images: dict[str, Image], screen: Screen, first: int
) -> None:
    """Take the steps in a folder of the user. Raises StoryError at the first that fails."""
    (folder / "charts").symlink_to(ROOT / "charts")
    environment = shell(folder, stage.kubectl)
    transcript = Transcript(hidden={str(folder): "~", str(ROOT): "~/regroup"})
    terminal = Terminal(folder, environment, transcript, screen)
    with notebook(folder, environment, transcript, screen) as opened:
        if first > 1:
            opened.run(CONTINUED)
        volume = stage.volume(NAMESPACE)
        walk = Walk(terminal, opened, stage.kubectl, images, renamed(images), volume, OUTPUT)
        for number, step in enumerate(STEPS[first - 1 :], first):
            title = (step.__doc__ or "").strip()
            screen.title(f"{number}. {title}")
            transcript.parts.clear()
            transcript.heading(f"{number}. {title}")
            try:
                step(walk)
            finally:
                written(number).write_text(transcript.markdown())


def written(number: int) -> Path:
    """What was typed in a step."""
    return OUTPUT / f"step-{number}.md"


def shell(folder: Path, kubectl: Kubectl) -> dict[str, str]:
    """The environment of a user whose kubeconfig names the namespace."""
    config = folder / "kubeconfig"
    config.write_text(kubectl("config", "view", "--raw", "--minify", "--flatten"))
    kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}",
            f"--kubeconfig={config}")  # fmt: skip
    programs = [Path(sys.executable).parent, Path(kubectl.command()[0]).parent]
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    own = {"KUBECONFIG": str(config), "PATH": path, "HOME": str(folder), "COLUMNS": "96"}
    # Without compiled files, each command would take a minute to import its packages.
    left_out = "PYTHONDONTWRITEBYTECODE"
    return {**{name: os.environ[name] for name in os.environ if name != left_out}, **own}


def publish() -> None:
    """Put the page and its pictures into the documentation."""
    steps = [written(number).read_text() for number in range(1, len(STEPS) + 1)]
    PAGE.write_text("\n".join([INTRODUCTION, *steps]))
    for picture in OUTPUT.glob("*.png"):
        shutil.copy(picture, PICTURES)


if __name__ == "__main__":
    main()
