"""Giving a written checkpoint its name, and deleting those that may go. Torch-free.

A publisher may be held up anywhere (a frozen node, a volume that does not answer) and go on when others have taken
over. No shared file system gives a check and a rename in one. So nothing is renamed over another; what is in the way,
or may go, is first taken out of sight, and given back unless the taker is the newest generation even then. What counts
for a newer one is thus neither replaced nor deleted. A window is left: a taker that was held up right before its rename
can be killed, or held up once more, right after it. What it took is then out of sight (`.stale-`, `.removed-`), and
tidied away when the next generation begins, or publishes.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from regroup_trainer import durable
from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, Layout, Manifest
from regroup_trainer.config import CheckpointPolicy
from regroup_trainer.contract import GenerationNumber
from regroup_trainer.errors import FencedError


def publish(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """Give a completely written directory its final name, durably.

    If a whole checkpoint of this step and lineage is there already, the new one is dropped; a damaged one, or one of
    another line, is set aside. Raises FencedError when a newer generation has begun, OSError.
    """
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    durable.sync(directory / MANIFEST)
    durable.sync(directory)
    lineage.require_newest(layout, manifest.generation)
    give_name(layout, manifest, directory)


def give_name(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """What `publish` does after its check, whenever it comes to it. Raises FencedError, OSError."""
    target, generation = layout.published(manifest.step), manifest.generation
    if target.exists():
        if _is_ours(layout, manifest):
            shutil.rmtree(directory)
            return
        _take_away(layout, target, layout.stale(manifest.step, generation), generation)
    try:
        durable.rename(directory, target)
    except OSError:
        lineage.require_newest(layout, generation)  # who begins sweeps what others write, and may use the name
        raise
    _point_latest(layout, target)


def prune(layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy) -> None:
    """Delete the checkpoints of this lineage that the policy does not keep, and those set aside by older generations.

    Raises FencedError when a newer generation has begun, OSError.
    """
    lineage.require_newest(layout, generation)
    for step in superfluous(layout, generation, policy):
        remove(layout, step, generation)
    for path in catalog.stale(layout, generation):
        shutil.rmtree(path)


def superfluous(layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy) -> list[int]:
    """The steps whose checkpoints this generation does not keep. Raises OSError."""
    links = _lineage(layout, generation)
    ours = [found.step for found in catalog.published(layout) if found.manifest and catalog.on_lineage(found, links)]
    return catalog.removable(ours, policy.keep_last, policy.keep_every_steps)


def remove(layout: Layout, step: int, generation: GenerationNumber) -> None:
    """Delete a checkpoint that this generation does not keep. Raises FencedError, OSError."""
    path = layout.published(step)
    shutil.rmtree(_take_away(layout, path, layout.removed(path), generation))


def _take_away(layout: Layout, path: Path, target: Path, generation: GenerationNumber) -> Path:
    """Have a checkpoint published no more, if this generation may say so: what counts is for the newest to know.

    Returns where it is now. Raises FencedError, OSError; then it is where it was, if the volume lets it.
    """
    lineage.require_newest(layout, generation)
    aside = catalog.set_aside(path, target)
    try:
        lineage.require_newest(layout, generation)  # now that nobody else sees it
    except (FencedError, OSError):
        with contextlib.suppress(OSError):  # another has been published meanwhile: that one stays
            durable.rename(aside, path)
        raise
    return aside


def _is_ours(layout: Layout, manifest: Manifest) -> bool:
    there = catalog.read_candidate(layout, manifest.step)
    if there.manifest is None or not catalog.on_lineage(there, _lineage(layout, manifest.generation)):
        return False
    return not catalog.verify(there.path, there.manifest, there.manifest.files)


def _lineage(layout: Layout, generation: GenerationNumber) -> tuple[lineage.LineageRecord, ...]:
    return lineage.chain(lineage.read(layout), generation)


def _point_latest(layout: Layout, target: Path) -> None:
    """`latest` is for people; a failure must not fail a save that has been published."""
    beside = layout.latest.with_name(".latest.new")
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(target.name)
        durable.rename(beside, layout.latest)
