"""Giving a written checkpoint its name, and deleting those that may go. Torch-free."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from regroup_trainer import durable
from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, Layout, Manifest
from regroup_trainer.config import CheckpointPolicy
from regroup_trainer.contract import GenerationNumber


def publish(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """Give a completely written directory its final name, durably.

    If a whole checkpoint of this step and lineage is there already, the new one is dropped; one of another line is set
    aside. Raises FencedError when a newer generation has begun, OSError.
    """
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    durable.sync(directory / MANIFEST)
    durable.sync(directory)
    lineage.require_newest(layout, manifest.generation)
    target = layout.published(manifest.step)
    if target.exists():
        if _is_ours(layout, manifest):
            shutil.rmtree(directory)
            return
        catalog.set_aside(target, layout.stale(manifest.step, manifest.generation))
    durable.rename(directory, target)
    _point_latest(layout, target)


def prune(layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy) -> None:
    """Delete the checkpoints of this lineage that the policy does not keep, and those set aside by older generations.

    Raises OSError.
    """
    links = _lineage(layout, generation)
    ours = [found.step for found in catalog.published(layout) if found.manifest and catalog.on_lineage(found, links)]
    for step in catalog.removable(ours, policy.keep_last, policy.keep_every_steps):
        catalog.remove(layout, step)
    for path in catalog.stale(layout, generation):
        shutil.rmtree(path)


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
