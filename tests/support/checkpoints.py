"""Small checkpoints and generations, made without torch."""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, DataIdentity, FileRecord, Layout, Manifest
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber

FIRST = GenerationNumber(1, 1)
DATA = DataIdentity(fingerprint="f", samples=100, seed=0, global_batch_size=4, sequence_length=8)


def write_checkpoint(layout: Layout, step: int, generation: GenerationNumber = FIRST) -> Manifest:
    """Write a whole checkpoint of `step`, whichever generation is the newest."""
    manifest = write_files(layout.published(step), step, generation)
    (layout.published(step) / MANIFEST).write_text(manifest.model_dump_json())
    return manifest


def write_files(directory: Path, step: int, generation: GenerationNumber) -> Manifest:
    """Write the files of a checkpoint; returns its manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    shard = directory / "__0_0.distcp"
    shard.write_bytes(b"shard")
    return Manifest(
        step=step,
        position=step * 4,
        tokens=step * 32,
        generation=generation,
        world_size=1,
        strategy="ddp",
        model={"name": "gpt"},
        data=DATA,
        torch="2",
        time=0.0,
        files={shard.name: catalog.file_record(shard)},
    )


def write_long_manifest(layout: Layout, manifest: Manifest, damaged: bool = False) -> Manifest:
    """Let a checkpoint have a thousand files more, which are not written. Returns its manifest.
    `damaged`: behind the head, where only who reads all of it notices.
    """
    more = {f"__{rank}_0.distcp": FileRecord(size=1, checksum="0" * 16) for rank in range(1, 1001)}
    long = manifest.model_copy(update={"files": manifest.files | more})
    text = long.model_dump_json(indent=1)
    text = text.replace('"__900_0.distcp": {', '"__900_0.distcp": ?') if damaged else text
    (layout.published(manifest.step) / MANIFEST).write_text(text)
    return long


def begin(layout: Layout, n: int, resumed: int = 0, parent: int | None = None) -> GenerationNumber:
    """Generation 1.n begins with a checkpoint of step `resumed`."""
    number = GenerationNumber(1, n)
    record = LineageRecord(
        generation=number,
        parent=GenerationNumber(1, parent) if parent else None,
        resumed_from_step=resumed,
        resume=ResumePolicy(),
        data=DATA,
    )
    lineage.begin(layout, record)
    return number
