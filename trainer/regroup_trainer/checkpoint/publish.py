"""Gives a written checkpoint its final name, and deletes checkpoints that may go. Torch-free.

A publisher may be held up anywhere (a frozen node, a volume that does not answer) and continue when
other ranks have taken over. No shared file system offers a check and a rename in one operation. So
nothing is renamed over another checkpoint. What is in the way, or may go, is first renamed to a
hidden name. It is given back unless this generation is the newest even then. So a checkpoint that
counts for a newer generation is neither replaced nor deleted. One window is left: a publisher that
was held up right before its rename can be killed, or held up again, right after it. The checkpoint
then keeps its hidden name (`.stale-`, `.removed-`) and is removed when the next generation begins,
or publishes.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, Layout, Manifest
from regroup_trainer.errors import FencedError
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system import durable


def publish(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """Give a completely written directory its final name, durably.

    If a whole checkpoint of this step and lineage exists, the new one is dropped. A damaged one, or
    one of another line, is set aside. Raises FencedError when a newer generation has begun,
    OSError.
    """
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    durable.sync(directory / MANIFEST)
    durable.sync(directory)
    lineage.require_begun(layout, manifest.generation)
    lineage.require_newest(layout, manifest.generation)
    give_name(layout, manifest, directory)


def give_name(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """The part of `publish` after its check, which may be delayed. Raises FencedError, OSError."""
    target, generation = layout.published(manifest.step), manifest.generation
    if target.exists():
        if _is_ours(layout, manifest):
            shutil.rmtree(directory)
            return
        _take_away(layout, target, layout.stale(manifest.step, generation), generation)
    try:
        durable.rename(directory, target)
    except OSError:
        lineage.require_newest(
            layout, generation
        )  # a newer generation has swept the directory, or uses the name
        raise
    _point_latest(layout, target)


def prune(layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy) -> None:
    """Delete the checkpoints of this lineage that the policy does not keep, and those that older
    generations set aside.

    Raises FencedError when a newer generation has begun, OSError.
    """
    lineage.require_newest(layout, generation)
    for step in superfluous(layout, generation, policy):
        remove(layout, step, generation)
    for path in catalog.stale(layout, generation):
        shutil.rmtree(path)


def superfluous(
    layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy
) -> list[int]:
    """The steps whose checkpoints this generation does not keep. Raises OSError."""
    links = lineage.ending_with(layout, generation)
    ours = catalog.on_lineage(catalog.glance(layout), links)
    steps = (found.step for found in ours if found.manifest)
    readable = (step for step in steps if catalog.read_candidate(layout, step).manifest)
    newest = list(itertools.islice(readable, policy.keep_last))
    older = list(steps)  # of which a glance is enough: they do not count as kept
    return catalog.removable([*newest, *older], policy.keep_last, policy.keep_every_steps)


def remove(layout: Layout, step: int, generation: GenerationNumber) -> None:
    """Delete a checkpoint that this generation does not keep. Raises FencedError, OSError."""
    path = layout.published(step)
    shutil.rmtree(_take_away(layout, path, layout.removed(path), generation))


def _take_away(layout: Layout, path: Path, target: Path, generation: GenerationNumber) -> Path:
    """Hide a published checkpoint, if this generation is the newest before and after; returns its
    new path.

    Raises FencedError, OSError. The checkpoint then has its old name again, if the volume allows
    that.
    """
    lineage.require_newest(layout, generation)
    aside = catalog.set_aside(path, target)
    try:
        lineage.require_newest(layout, generation)  # now that nobody else sees it
    except (FencedError, OSError):
        with contextlib.suppress(OSError):  # if another one was published meanwhile, that one stays
            durable.rename(aside, path)
        raise
    return aside


def _is_ours(layout: Layout, manifest: Manifest) -> bool:
    there = catalog.read_candidate(layout, manifest.step)
    links = lineage.ending_with(layout, manifest.generation)
    if there.manifest is None or not catalog.on_lineage([there], links):
        return False
    return not catalog.verify(there.path, there.manifest, there.manifest.files)


def _point_latest(layout: Layout, target: Path) -> None:
    """Update the link for people. A failure is ignored: the checkpoint is published."""
    beside = layout.latest.with_name(".latest.new")
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(target.name)
        durable.rename(beside, layout.latest)
