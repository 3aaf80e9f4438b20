"""Reads a verified checkpoint into a state, and checks whether it may be read.

Checksums say that a file is what somebody has written, not who that was. So nothing that a file
names is imported or called.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from regroup_trainer.checkpoint import catalog
from regroup_trainer.checkpoint.description import DamagedError, read_metadata
from regroup_trainer.checkpoint.layout import Layout, Manifest, RunIdentity
from regroup_trainer.data import default_text
from regroup_trainer.data.data_set_fingerprint import DataSetFingerprint
from regroup_trainer.errors import CheckpointError, ConfigurationError, StorageError
from regroup_trainer.protocol.environment import OTHER_DATA
from regroup_trainer.step.plain_values import load_plain
from regroup_trainer.system.background import note_progress
from regroup_trainer.system.kept_file import replace_text
from regroup_trainer.system.volume_errors import may_pass

_METADATA = ".metadata"


class CheckpointReader(FileSystemReader):
    """Reads the files of a checkpoint. Raises CheckpointError for a description that is none, and
    OSError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        sizes = {file.name: file.stat().st_size for file in path.glob("*.distcp")}
        try:
            self._described = read_metadata((path / _METADATA).read_bytes(), sizes)
        except DamagedError as error:
            raise CheckpointError(
                f"{path / _METADATA} cannot be read: {error}: find out who wrote it, and move "
                f"{path} away to resume from an older checkpoint"
            ) from error

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """The description, which was read once and without running code."""
        return self._described


class PlainLoadPlanner(DefaultLoadPlanner):
    """Takes tensors and plain values only; of a checkpoint, or of a memory snapshot."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object into the state. Raises CheckpointError for one that is not plain."""
        name = read_item.dest_index.fqn
        plain = load_plain(value.getvalue(), name)
        set_element(self.original_state_dict, self.mappings[name], plain)
        note_progress()

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """A tensor is filled."""
        super().commit_tensor(read_item, tensor)
        note_progress()


def read(tensors: dict[str, Any], path: Path) -> None:
    """Fill nested dicts of tensors and plain values in place, from a checkpoint that may be of
    another world size and strategy. No other rank takes part, so that a thread may do it.

    Raises CheckpointError for files that hold something else, StorageError where they are gone, and
    OSError.
    """
    try:
        _fill(tensors, CheckpointReader(path))
    except FileNotFoundError as error:
        raise _replaced(path) from error
    except (*_OF_THE_MACHINE, CheckpointError):
        raise
    except Exception as cause:
        raise CheckpointError(
            f"{path}: {_summary(cause)}: find out who wrote it, and move it away to resume from an "
            "older checkpoint"
        ) from cause


def _fill(tensors: dict[str, Any], reader: CheckpointReader) -> None:
    """As DCP's `load`, which agrees on the plan in collectives: each rank's is its own anyway."""
    described, planner = reader.read_metadata(), PlainLoadPlanner()
    planner.set_up_planner(tensors, described)
    reader.set_up_storage_reader(described, is_coordinator=False)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)


_OF_THE_MACHINE = (OSError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
"""Errors that say nothing about the files."""


def _summary(cause: BaseException) -> str:
    """The first sentence of an error of torch, which may have many lines."""
    return str(cause) if isinstance(cause, CheckpointError) else f"{cause!s:.200}".split("\n")[0]


def require_unchanged(layout: Layout, manifest: Manifest) -> None:
    """Raises StorageError when a checkpoint was deleted or replaced.

    Until this generation begins, an older one that still trains may do so.
    """
    if catalog.read_candidate(layout, manifest.step).manifest != manifest:
        raise _replaced(layout.published(manifest.step))


def _replaced(path: Path) -> StorageError:
    return StorageError(
        f"checkpoint {path} was deleted or replaced while it was read, by a generation that is not "
        "over yet or by hand: nothing to do, the next attempt chooses from those there"
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


def is_in_doubt(manifest: Manifest, identity: RunIdentity) -> bool:
    """Whether another process has to read the data set of a user to tell if it is another one."""
    if not identity.is_custom or os.environ.get(OTHER_DATA) == "1":
        return False
    then, now = (
        DataSetFingerprint.parse(data.fingerprint) for data in (manifest.data, identity.data)
    )
    return then.is_doubted_by(now)


def exchange_reading(layout: Layout, manifest: Manifest, identity: RunIdentity) -> str:
    """The digest of the data set that a former process has read when it was in doubt about the same
    checkpoint. Empty: none was, and that of this process is kept for the next one. Raises OSError.
    """
    path = layout.data_set_read
    now = f"{manifest.step} {DataSetFingerprint.parse(identity.data.fingerprint).samples}"
    former = path.read_text(errors="replace") if path.exists() else ""
    step, _, samples = former.partition(" ")
    if samples and step == str(manifest.step):
        path.unlink()
        return samples
    replace_text(path, now)
    return ""


def require_fitting(manifest: Manifest, identity: RunIdentity, read_before: str = "") -> None:
    """Raises ConfigurationError, with both values, when a checkpoint is of another run.
    `read_before` is what `exchange_reading` gave where that was in doubt.
    """
    names = _ARGUMENTS if identity.is_custom else _FIELDS
    by_itself = (
        ", or give Session another directory if you started it yourself,"
        if identity.is_custom
        else ""
    )
    way_out = f"change it back, or set resume.policy: Never{by_itself} to start from scratch"
    if identity.is_custom:
        _require_data_set(manifest, identity.data.fingerprint, read_before, way_out)
    for name, now in identity.data.model_dump().items():
        then = getattr(manifest.data, name)
        if now != then and not (identity.is_custom and name == "fingerprint"):
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


def _require_data_set(manifest: Manifest, now: str, read_before: str, way_out: str) -> None:
    """Raises ConfigurationError when a checkpoint was trained with another data set of a user."""
    before, found = (DataSetFingerprint.parse(one) for one in (manifest.data.fingerprint, now))
    if before.continued_by(found, read_before) is not None or os.environ.get(OTHER_DATA) == "1":
        return
    refused, trained = _ARGUMENTS["fingerprint"], f"checkpoint step {manifest.step} was trained"
    if before.kind != found.kind:
        raise ConfigurationError(
            f"{refused}: {found.kind} differs from {before.kind}, with which {trained}: {way_out}"
        )
    raise ConfigurationError(
        f"{refused}: {found.kind} has other samples ({found.samples}) than that with which "
        f"{trained} ({before.samples}): {way_out}. To go on with these samples, set "
        f"{OTHER_DATA}=1 in the environment until the next checkpoint is saved"
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
