"""The undisturbed run that the demo's loss curve is compared with: run once, then kept by what it depends on."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from demo.errors import StoryError
from demo.installation import ROOT, Image
from demo.job import SAMPLE, Job, manifest
from demo.programs import cache
from demo.screen import Screen
from demo.stages.stage import Stage
from demo.watch import Watch

Losses = tuple[float | None, ...]
NAME = "gpt-reference"
UNDISTURBED = ((3,), (2, 3))
"""Sizes of the world; a job may begin with two while its third worker still starts."""
SECONDS = 900


def torch_version() -> str:
    """The pinned version of torch."""
    pinned = re.search(r"^torch==(\S+)", (ROOT / "requirements/trainer.txt").read_text(), re.MULTILINE)
    return pinned[1] if pinned else ""


def kept_in(image: str) -> Path:
    """The file that keeps the losses of this YAML with this image and torch."""
    inputs = f"{SAMPLE.read_text()}\n{image}\n{torch_version()}"
    return cache() / "demo" / f"reference-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.json"


def losses(stage: Stage, namespace: str, image: Image, screen: Screen) -> Losses:
    """The loss of every step of the undisturbed run. Raises StoryError when that is disturbed, too."""
    file = kept_in(image.name)
    if file.exists():
        screen.tell(f"The undisturbed run of the same YAML is known: {file}")
        return tuple(json.loads(file.read_text()))
    screen.title("The same YAML undisturbed, to compare with (kept for the next time)")
    found = run(stage, namespace, screen)
    keep(file, found)
    return found


def run(stage: Stage, namespace: str, screen: Screen) -> Losses:
    """Run it to its end."""
    job = Job.apply(stage, namespace, manifest(NAME))
    watch = Watch(job, screen)
    with screen.live():
        watch.until(f"{NAME} to complete", lambda: job.condition("Complete") == "True", SECONDS, every=0.5)
    committed = job.volume().committed()
    job.delete()
    sizes = {step.world for step in committed}
    if len(committed) != job.total_steps or len(sizes) != 1:
        raise StoryError(
            f"{NAME} was to be undisturbed, but has {len(committed)} steps in worlds of {sizes}: run it again"
        )
    screen.tell(f"It ended at a loss of {committed[-1].loss:.4f} after {len(committed)} steps")
    return tuple(step.loss for step in committed)


def keep(file: Path, found: Losses) -> None:
    """Write the file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(file)
