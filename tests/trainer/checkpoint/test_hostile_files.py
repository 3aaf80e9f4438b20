"""Whoever can write to the volume can spoil a checkpoint, but runs no code where it is read.

Checksums do not help: the manifest lies beside the files.
"""

from __future__ import annotations

import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from regroup_trainer.checkpoint.catalog import file_record
from regroup_trainer.checkpoint.commands import main
from regroup_trainer.checkpoint.export import read_model
from regroup_trainer.checkpoint.layout import MANIFEST, Layout
from regroup_trainer.errors import CheckpointError
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support import hostile_pickle
from tests.support.ranks import RankOutcome, Template, generation, train_config

WRITTEN = Path(__file__).parent / "written_by_v0_1"
TRAIN: dict[str, dict[str, Any]] = {
    "model": {"preset": None, "dimensions": {"layers": 1, "heads": 1, "width": 8}},
    "data": {"source": "synthetic", "classes": 16, "samples": 64},
    "training": {"steps": 4, "global_batch_size": 4, "micro_batch_size": 2, "sequence_length": 8},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of two ranks, step 2, in a job's directory."""
    with tarfile.open(WRITTEN / "ddp.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Layout(tmp_path).published(2)


def described(checkpoint: Path) -> Metadata:
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    assert isinstance(metadata, Metadata)
    return metadata


def make_whole(checkpoint: Path) -> None:
    """Let the manifest have the checksums of the files that are there."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    for name in manifest["files"]:
        manifest["files"][name] = file_record(checkpoint / name).model_dump()
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def replace_object(checkpoint: Path, name: str, content: bytes) -> None:
    """Let an object of the checkpoint be other bytes, which are appended to its file."""
    metadata = described(checkpoint)
    place = metadata.storage_data[MetadataIndex(name)]
    file = checkpoint / place.relative_path
    place.offset, place.length = file.stat().st_size, len(content)
    with file.open("ab") as stream:
        stream.write(content)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


def resume(template: Template, directory: Path) -> RankOutcome:
    """The end of the one rank that resumes in the directory."""
    record = generation(directory, 1, train_config(**TRAIN), number=GenerationNumber(1, 2))
    (outcome,) = template.run(record)
    return outcome


def test_a_rank_that_resumes_runs_nothing_that_the_description_names(
    template: Template, checkpoint: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    (checkpoint / ".metadata").write_bytes(hostile_pickle.pickled(mark))
    make_whole(checkpoint)
    outcome = resume(template, tmp_path)
    assert outcome.exit_code == 2
    assert "names posix.mkdir, which is no part of such a file: find out who" in outcome.stderr
    assert not mark.exists()


def test_a_rank_that_resumes_runs_nothing_that_a_shard_names(
    template: Template, checkpoint: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    replace_object(checkpoint, "optimizer.param_groups.0.lr", hostile_pickle.saved(mark))
    make_whole(checkpoint)
    outcome = resume(template, tmp_path)
    assert outcome.exit_code == 2
    assert "optimizer.param_groups.0.lr holds more than tensors and plain" in outcome.stderr
    assert not mark.exists()


def test_an_export_runs_nothing_that_the_files_name(checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (checkpoint / ".metadata").write_bytes(hostile_pickle.pickled(mark))
    make_whole(checkpoint)
    done = CliRunner().invoke(main, ["export", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "names posix.mkdir" in done.output
    assert not mark.exists()


def test_a_tensor_that_is_none_runs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    metadata = described(checkpoint)
    index = next(key for key in metadata.storage_data if key.fqn.startswith("model."))
    place, content = metadata.storage_data[index], hostile_pickle.saved(mark)
    file = checkpoint / place.relative_path
    place.offset, place.length = file.stat().st_size, len(content)
    with file.open("ab") as stream:
        stream.write(content)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"step-2: Weights only load failed"):
        read_model(checkpoint)
    assert not mark.exists()


def first_tensor(metadata: Metadata) -> TensorStorageMetadata:
    return next(
        what
        for name, what in metadata.state_dict_metadata.items()
        if name.startswith("model.") and isinstance(what, TensorStorageMetadata)
    )


def refer(path: str) -> Callable[[Metadata], None]:
    def act(metadata: Metadata) -> None:
        next(iter(metadata.storage_data.values())).relative_path = path

    return act


def enlarge(metadata: Metadata) -> None:
    first_tensor(metadata).size = torch.Size((1 << 40,))


def shift(offset: int) -> Callable[[Metadata], None]:
    def act(metadata: Metadata) -> None:
        next(iter(metadata.storage_data.values())).offset = offset

    return act


def transform(metadata: Metadata) -> None:
    next(iter(metadata.storage_data.values())).transform_descriptors = ["zstd"]


def forget(metadata: Metadata) -> None:
    metadata.storage_data.clear()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (refer("/etc/passwd"), "refers to the file '/etc/passwd', which is no shard"),
        (refer("../step-1/__0_0.distcp"), "which is no shard"),
        (refer("__9_0.distcp"), "refers to __9_0.distcp, which is not there"),
        (enlarge, "has 4398046511104 bytes, of which fewer are stored"),
        (shift(-1), "the number -1 for a size or a place"),
        (shift(10**400), "the number a number of 1329 bits for a size or a place"),
        (shift(1 << 40), "refers to more of __"),
        (transform, "its files are transformed"),
        (forget, "says no place of"),
    ],
)
def test_a_description_that_contradicts_the_files_is_refused(
    checkpoint: Path, spoil: Callable[[Metadata], None], message: str
) -> None:
    metadata = described(checkpoint)
    spoil(metadata)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=message):
        read_model(checkpoint)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(None), pickle.dumps({1: 2})])
def test_a_damaged_description_is_refused(checkpoint: Path, content: bytes) -> None:
    (checkpoint / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"\.metadata cannot be read"):
        read_model(checkpoint)


def test_random_damage_of_a_description_never_raises_anything_else(checkpoint: Path) -> None:
    random, path = Random(7), checkpoint / ".metadata"
    whole = path.read_bytes()
    for _ in range(100):
        content = bytearray(whole)
        for _ in range(random.randrange(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content)
        try:
            read_model(checkpoint)
        except CheckpointError:
            continue


def test_the_present_release_writes_what_it_reads(template: Template, tmp_path: Path) -> None:
    record = generation(tmp_path, 1, train_config(**TRAIN))
    assert template.run(record)[0].exit_code == 0
    written = Layout(tmp_path).published(4)
    assert read_model(written).keys() == {
        name.removeprefix("model.")
        for name, what in described(written).state_dict_metadata.items()
        if name.startswith("model.") and isinstance(what, TensorStorageMetadata)
    }
