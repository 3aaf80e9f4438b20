"""Small published checkpoints, made without torch."""

from __future__ import annotations

from regroup_trainer.checkpoint import catalog
from regroup_trainer.checkpoint.layout import MANIFEST, DataIdentity, Layout, Manifest
from regroup_trainer.contract import GenerationNumber

DATA = DataIdentity(fingerprint="f", samples=100, seed=0, global_batch_size=4, sequence_length=8)


def write_checkpoint(layout: Layout, step: int, generation: GenerationNumber = GenerationNumber(1, 1)) -> Manifest:  # noqa: B008
    """Publish a whole checkpoint of `step`."""
    directory = layout.published(step)
    directory.mkdir(parents=True, exist_ok=True)
    shard = directory / "__0_0.distcp"
    shard.write_bytes(b"shard")
    manifest = Manifest(
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
    (directory / MANIFEST).write_text(manifest.model_dump_json())
    return manifest
