"""Reads a verified checkpoint into a state, and checks whether it may be read."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from regroup_trainer.checkpoint import catalog
from regroup_trainer.checkpoint.layout import Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.checkpoint.volume_calls import may_pass
from regroup_trainer.data import default_text
from regroup_trainer.errors import ConfigurationError, StorageError
from regroup_trainer.step.state import Position, TrainState


def load(state: TrainState, path: Path, manifest: Manifest) -> None:
    """Fill `state` from a verified checkpoint, which may be of another world size and strategy. All
    ranks call it.
    """
    tensors = tensors_of(state)
    load_tensors(tensors, storage_reader=FileSystemReader(path))
    put_back(state, tensors)
    state.position = Position(manifest.step, manifest.position, manifest.tokens)


def require_unchanged(layout: Layout, manifest: Manifest) -> None:
    """Raises StorageError when a checkpoint was deleted or replaced.

    Until this generation begins, an older one that still trains may do so.
    """
    if catalog.read_candidate(layout, manifest.step).manifest != manifest:
        raise StorageError(
            f"checkpoint {layout.published(manifest.step)} was deleted or replaced while it was "
            "read, by a generation "
            "that is not over yet or by hand: nothing to do, the next attempt chooses from those "
            "there"
        )


def require_writable(layout: Layout, probe_name: str) -> None:
    """Create the folders and try to write into them. Raises OSError, which says what to do."""
    for folder in (layout.checkpoints, layout.lineage, layout.history):
        probe = folder / f".probe-{probe_name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            why = f"is not writable for user {os.getuid()} ({error.strerror}): {_way_out(error)}"
            raise OSError(error.errno, f"checkpoint directory {folder} {why}") from error


def _way_out(error: OSError) -> str:
    if may_pass(error):
        return "free or repair the volume"
    return (
        "make it writable for that user (securityContext.fsGroup, or chown), or use another volume"
    )


def require_fitting(manifest: Manifest, identity: RunIdentity) -> None:
    """Raises ConfigurationError, with both values, when a checkpoint is of another run."""
    names = _ARGUMENTS if identity.is_custom else _FIELDS
    by_itself = (
        ", or give Session another directory if you started it yourself,"
        if identity.is_custom
        else ""
    )
    way_out = f"change it back, or set resume.policy: Never{by_itself} to start from scratch"
    for name, now in identity.data.model_dump().items():
        then = getattr(manifest.data, name)
        if now != then:
            trained = f"with which checkpoint step {manifest.step} was trained"
            if now == default_text.FINGERPRINT:
                trained += _OLD_DEFAULT_TEXT
            raise ConfigurationError(
                f"{names[name]}: {now} differs from {then}, {trained}: {way_out}"
            )
    if manifest.model != identity.model:
        raise ConfigurationError(
            f"model: {identity.model} differs from {manifest.model} of checkpoint step "
            f"{manifest.step}: {_former_size(manifest, identity)}{way_out}"
        )


def _former_size(manifest: Manifest, identity: RunIdentity) -> str:
    """The field with which a run goes on as a model of another size."""
    if identity.is_custom or manifest.model.get("name") != identity.model["name"]:
        return ""
    try:
        field = manifest.dimensions.as_field()
    except ValidationError:  # of a later release
        return ""
    return f"to go on with the model of the checkpoint, set {field} and no model.preset; or "


_OLD_DEFAULT_TEXT = (
    " (without data.paths, Regroup 0.1 took the standard library of its Python; now it takes the "
    "text that it brings: to keep the weights, export them and set model.initializeFrom in a new "
    "job)"
)
_FIELDS = {
    "fingerprint": "data.paths: the fingerprint of the text",
    "samples": "data.heldOutPercent: the number of training samples",
    "seed": "training.seed",
    "global_batch_size": "training.globalBatchSize",
    "sequence_length": "training.sequenceLength",
}
"""Field of DataIdentity -> its name in the built-in trainer's configuration."""
_ARGUMENTS = {
    "fingerprint": "session.batches: dataset",
    "samples": "session.batches: the size of the dataset",
    "seed": "Session: seed",
    "global_batch_size": "session.batches: global_batch_size",
    "sequence_length": "session.batches: the length of a sample",
}
"""Field of DataIdentity -> its name in a user's program."""
