"""The undisturbed run, whose losses the demo compares with its own. Its result is cached.

The cache key is a hash of the YAML, the image and the version of torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from demo.errors import StoryError
from demo.facts import Losses
from demo.installation import ROOT, Image
from demo.job import SAMPLE, Job, manifest
from demo.screen import Screen
from demo.stages.stage import Stage
from demo.watch import Watch
from tools.cache import cache_folder

NAME = "gpt-reference"
SECONDS = 900


def torch_version() -> str:
    """The pinned version of torch."""
    pinned = re.search(
        r"^torch==(\S+)", (ROOT / "requirements/trainer.txt").read_text(), re.MULTILINE
    )
    return pinned[1] if pinned else ""


def cache_file(image: str) -> Path:
    """The cache file for the losses of this YAML with this image and torch."""
    inputs = f"{SAMPLE.read_text()}\n{image}\n{torch_version()}"
    return (
        cache_folder()
        / "demo"
        / f"reference-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.json"
    )


def losses(stage: Stage, namespace: str, image: Image, screen: Screen) -> Losses:
    """The loss of every step of the undisturbed run. Raises StoryError when a
    failure disturbed it.
    """
    file = cache_file(image.name)
    if file.exists():
        screen.report(f"Using the cached losses of the undisturbed run: {file}")
        return tuple(json.loads(file.read_text()))
    screen.title("Reference: the same YAML without failures (cached for the next demo)")
    found = run(stage, namespace, screen)
    save(file, found)
    return found


def run(stage: Stage, namespace: str, screen: Screen) -> Losses:
    """Run the job undisturbed to its end and return its losses."""
    job = Job.apply(stage, namespace, manifest(NAME))
    watch = Watch(job, screen)
    with screen.live():
        watch.until(
            f"{NAME} to complete", lambda: job.condition("Complete") == "True", SECONDS, every=0.5
        )
    committed = job.volume().committed()
    job.delete()
    sizes = {step.world for step in committed}
    if len(committed) != job.total_steps or len(sizes) != 1:
        raise StoryError(
            f"{NAME} was disturbed: it has {len(committed)} steps with world sizes {sizes}: "
            "run it again"
        )
    screen.report(
        f"The reference run ended at a loss of {committed[-1].loss:.4f} "
        f"after {len(committed)} steps"
    )
    return tuple(step.loss for step in committed)


def save(file: Path, found: Losses) -> None:
    """Write the losses to the file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(file)
