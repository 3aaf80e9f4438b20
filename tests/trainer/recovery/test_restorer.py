"""What a generation reads from the volume, and notes there, while others may still be at it. One
rank, in here.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, DataIdentity, Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.load import read, require_fitting
from regroup_trainer.data import default_text
from regroup_trainer.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    ProgramRestartError,
    StorageError,
)
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.recovery import restorer
from regroup_trainer.recovery.inventory import Agreement
from regroup_trainer.recovery.restorer import Choice, Restorer
from regroup_trainer.snapshots.snapshot_reader import MemoryReader
from regroup_trainer.step.state import TrainState
from tests.support.checkpoints import DATA, begin, write_checkpoint
from tests.support.ranks import generation, train_config
from tests.support.volume import access, be_alone

IDENTITY = RunIdentity(model={"name": "gpt"}, strategy="ddp", data=DATA)
Meanwhile = Callable[[], object]


@pytest.fixture
def restore(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Choice]:
    """Restore as generation 1.n; something may happen while the checkpoint is read."""
    be_alone(monkeypatch)
    monkeypatch.setattr(restorer, "all_gather", lambda value: [value])

    def restore(
        n: int,
        meanwhile: Meanwhile = lambda: None,
        identity: RunIdentity = IDENTITY,
        **resume: Any,
    ) -> Choice:
        def read(_restorer: Restorer, _state: object, path: Path, manifest: Manifest) -> None:
            assert catalog.verify(path, manifest, manifest.files) == ""
            meanwhile()

        monkeypatch.setattr(Restorer, "_load", read)
        state: Any = None
        return replace(make_restorer(layout, n, **resume), identity=identity).restore(state)

    return restore


def make_restorer(layout: Layout, n: int, **resume: Any) -> Restorer:
    number = GenerationNumber(1, n)
    record = generation(layout.directory, 1, train_config(), number=number, resume=resume or None)
    group = GenerationGroup(0, 1, 0, torch.device("cpu"))
    return Restorer(layout, record, group, IDENTITY, access(record))


def test_a_checkpoint_that_cannot_be_read_for_a_while_is_waited_for(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ranks train or wait elsewhere, nobody counts that as a failure or a hang."""
    be_alone(monkeypatch)
    manifest, errors = write_checkpoint(layout, 10), [OSError(errno.EIO, "Input/output error")]
    paths = []

    def read(_tensors: object, path: Path) -> None:
        paths.append(path)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(restorer, "tensors_of", lambda _: {})
    monkeypatch.setattr(restorer, "put_back", lambda *_: None)
    monkeypatch.setattr(restorer, "read", read)
    state = cast(TrainState, SimpleNamespace())
    make_restorer(layout, 2)._load(state, layout.published(10), manifest)
    assert paths == [layout.published(10)] * 2
    assert state.position.step == 10


def test_a_checkpoint_that_is_gone_while_it_is_read_is_not_waited_for(layout: Layout) -> None:
    with pytest.raises(StorageError, match="step-10 was deleted or replaced while it was read"):
        read({}, layout.published(10))


def live(number: GenerationNumber, step: int) -> Agreement:
    """All ranks hold the state after `step`."""
    return Agreement(number, step, None, frozenset(), ())


def test_a_generation_that_is_fenced_sweeps_nothing(
    layout: Layout, restore: Callable[..., Choice]
) -> None:
    half = layout.temporary(10, begin(layout, 1))
    half.mkdir()
    begin(layout, 3, parent=1)
    with pytest.raises(FencedError):
        make_restorer(layout, 2).begin_from_live(live(GenerationNumber(1, 1), 5))
    assert half.exists()
    make_restorer(layout, 4).begin_from_live(live(GenerationNumber(1, 3), 5))
    assert not half.exists()


@pytest.mark.parametrize("by", ["deleted", "replaced"])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_resumed(
    layout: Layout, restore: Callable[..., Choice], by: str
) -> None:
    write_checkpoint(layout, 10, begin(layout, 1))

    def take_away() -> None:
        shutil.rmtree(layout.published(10))
        if by == "replaced":
            write_checkpoint(layout, 10, GenerationNumber(1, 2))

    with pytest.raises(StorageError, match="step-10 was deleted or replaced while it was read"):
        restore(3, take_away)
    assert set(lineage.read(layout)) == {GenerationNumber(1, 1)}


def test_one_that_cannot_even_be_set_aside_is_passed_over_where_it_is(
    layout: Layout, restore: Callable[..., Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = begin(layout, 1)
    for step in (10, 20):
        write_checkpoint(layout, step, only)
    (layout.published(20) / MANIFEST).unlink()

    def fail(*_: Path) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(catalog, "set_aside", fail)
    choice = restore(2)
    assert choice.path == layout.published(10)
    assert [skipped.path for skipped in choice.skipped] == [str(layout.published(20))]


def test_a_job_that_has_resumed_before_does_not_start_over_without_checkpoints(
    layout: Layout, restore: Callable[..., Choice]
) -> None:
    write_checkpoint(layout, 10, begin(layout, 1))
    restore(2)
    make_restorer(layout, 3).begin_from_live(live(GenerationNumber(1, 2), 14))
    shutil.rmtree(layout.published(10))
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint is left in .*restore one.*or set resume.policy: Never",
    ):
        restore(4)
    assert restore(5, policy="Never").restored_from == "Nothing"
    assert (
        restore(6, policy="Never").restored_from == "Nothing"
    )  # it is from there that the run goes on


def test_a_job_that_never_had_a_checkpoint_starts_over(
    layout: Layout, restore: Callable[..., Choice]
) -> None:
    begin(layout, 1)
    make_restorer(layout, 2).begin_from_live(live(GenerationNumber(1, 1), 5))
    assert restore(3).restored_from == "Nothing"


def test_a_lineage_record_says_whether_there_was_a_checkpoint(
    layout: Layout, restore: Callable[..., Choice]
) -> None:
    restore(1)
    write_checkpoint(layout, 10, GenerationNumber(1, 1))
    restore(2)
    make_restorer(layout, 3).begin_from_live(live(GenerationNumber(1, 2), 14))
    records = lineage.read(layout)
    assert [records[GenerationNumber(1, n)].from_checkpoint for n in (1, 2, 3)] == [
        False,
        True,
        False,
    ]


def test_a_job_of_release_0_1_without_a_text_is_refused_with_what_became_of_its_text(
    layout: Layout,
) -> None:
    manifest = write_checkpoint(layout, 50)
    data = DATA.model_copy(update={"fingerprint": default_text.FINGERPRINT})
    identity = RunIdentity(model={"name": "gpt"}, strategy="ddp", data=data)
    with pytest.raises(ConfigurationError) as refused:
        require_fitting(manifest, identity)
    assert "Regroup 0.1 took the standard library of its Python" in str(refused.value)
    assert "set resume.policy: Never to start from scratch" in str(refused.value)


def test_a_data_set_that_one_worker_alone_has_read_is_refused_once_another_process_reads_the_same(
    layout: Layout, restore: Callable[..., Choice]
) -> None:
    read_once(layout, "a")
    assert starts(restore, 2, "b") == "starts again"
    assert starts(restore, 3, "b") == "refused"
    assert starts(restore, 4, "b") == "starts again", "nothing is left of the refusal"
    assert starts(restore, 5, "a") == "goes on"


def test_a_data_set_that_reads_differently_in_each_process_is_not_refused(
    layout: Layout, restore: Callable[..., Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_once(layout, "a")
    assert starts(restore, 2, "b") == "starts again"
    assert starts(restore, 3, "c") == "goes on"
    monkeypatch.setenv("REGROUP_OTHER_DATA", "1")
    assert starts(restore, 4, "d") == "goes on"


def test_a_snapshot_is_continued_without_a_note_on_a_volume_that_may_be_full(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the samples of this process are others than those of the one that made it."""
    be_alone(monkeypatch)
    contents = SimpleNamespace(manifest=read_once(layout, "a"), history=b"")
    memory = SimpleNamespace(open=lambda: contents, load=lambda *_: "")
    layout.data_set_read.mkdir()  # nothing can be written to it
    identity = replace(IDENTITY, data=data_of("b"), is_custom=True)
    one = replace(make_restorer(layout, 2), identity=identity, memory=cast(MemoryReader, memory))
    assert one.restore(cast(TrainState, None)).restored_from == "Snapshot"


def read_once(layout: Layout, samples: str) -> Manifest:
    """There is a checkpoint of a run of one worker, which has read these samples once."""
    begin(layout, 1)
    manifest = write_checkpoint(layout, 50)
    changed = manifest.model_copy(update={"data": data_of(samples)})
    (layout.published(50) / MANIFEST).write_text(changed.model_dump_json())
    return changed


def data_of(samples: str) -> DataIdentity:
    return DATA.model_copy(update={"fingerprint": f"Points, samples {samples * 16} by one worker"})


def starts(restore: Callable[..., Choice], n: int, samples: str) -> str:
    """How a process that has read these samples starts."""
    identity = RunIdentity(model={"name": "gpt"}, strategy="ddp", data=data_of(samples))
    try:
        restore(n, identity=replace(identity, is_custom=True))
    except ProgramRestartError:
        return "starts again"
    except ConfigurationError:
        return "refused"
    return "goes on"
