"""What is whole, what may go, what is swept."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.checkpoint import catalog
from regroup_trainer.checkpoint.layout import MANIFEST, FileRecord, Head, Layout, Manifest
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.volume_errors import AWAY
from tests.support.checkpoints import write_checkpoint, write_long_manifest

FILE = "__0_0.distcp"


@given(st.sets(st.integers(1, 200)), st.integers(1, 10), st.none() | st.integers(1, 20))
def test_the_newest_and_every_mth_stay(steps: set[int], keep_last: int, every: int | None) -> None:
    gone = set(catalog.removable(steps, keep_last, every))
    newest = set(sorted(steps)[-keep_last:])
    assert gone <= steps - newest
    assert all(step % every for step in gone) if every else gone == steps - newest


def test_a_whole_checkpoint_verifies(tmp_path: Path) -> None:
    manifest = write_checkpoint(Layout(tmp_path), 5)
    (found,) = catalog.published(Layout(tmp_path))
    assert (found.step, found.manifest) == (5, manifest)
    assert catalog.verify(found.path, manifest, manifest.files) == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"shard!", "__0_0.distcp has 6 bytes instead of 5"),
        (b"shark", "__0_0.distcp has checksum"),
        (None, "__0_0.distcp cannot be read (No such file or directory)"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    manifest = write_checkpoint(Layout(tmp_path), 5)
    path = Layout(tmp_path).published(5)
    shard = path / "__0_0.distcp"
    shard.unlink() if content is None else shard.write_bytes(content)
    assert catalog.verify(path, manifest, manifest.files).startswith(problem)


@pytest.mark.parametrize(
    "code",
    sorted(AWAY | {errno.EIO, errno.EACCES}),
)
def test_a_volume_that_is_not_reached_makes_no_checkpoint_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A soft NFS mount gives EIO, for a new file too."""
    manifest = write_checkpoint(Layout(tmp_path), 5)

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:  # pytest itself reads files when the test has ended
        patch.setattr(Path, "open", fail)
        patch.setattr(Path, "read_bytes", fail)
        patch.setattr(Path, "touch", fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            catalog.published(Layout(tmp_path))
        with pytest.raises(OSError, match=os.strerror(code)):
            catalog.verify(Layout(tmp_path).published(5), manifest, manifest.files)


def test_a_checkpoint_without_a_readable_manifest_is_a_candidate_with_a_problem(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    for step in (1, 2, 3, 4, 5):
        write_checkpoint(layout, step)
    (layout.published(1) / MANIFEST).unlink()
    (layout.published(2) / MANIFEST).write_text("{}")
    newer = write_checkpoint(layout, 3).model_copy(update={"format": 99})
    (layout.published(3) / MANIFEST).write_text(newer.model_dump_json())
    layout.published(4).rename(layout.published(9))
    (layout.published(5) / MANIFEST).unlink()
    (layout.published(5) / MANIFEST).mkdir()
    layout.published(6).write_text("a file")
    (layout.checkpoints / "step-\N{ARABIC-INDIC DIGIT SEVEN}").mkdir()  # is none of ours
    assert [(found.step, found.problem) for found in catalog.published(layout)] == [
        (9, "manifest.json is of step 4"),
        (6, "manifest.json cannot be read (Not a directory)"),
        (5, "manifest.json cannot be read (Is a directory)"),
        (3, "manifest.json has format 99, this version reads 1"),
        (2, f"manifest.json is damaged ({_required_fields()} errors)"),
        (1, "manifest.json is missing"),
    ]


def test_a_glance_at_many_files_is_a_short_read_and_finds_the_heads(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    long = write_long_manifest(layout, write_checkpoint(layout, 5))
    short = write_checkpoint(layout, 4)
    with mock.patch.object(catalog, "read_candidate", wraps=catalog.read_candidate) as whole:
        heads = catalog.glance(layout)
    assert whole.call_args_list == [mock.call(layout, 4)]
    head = Head.model_validate(long.model_dump(exclude={"files"}))
    assert [found.manifest for found in heads] == [head, short]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"step"', '"stop"', 1),
        lambda text: text.replace('"step": 5', '"step": 6'),
        lambda text: text.replace('"format": 1', '"format": 99'),
        lambda text: f"[{text}]",
        lambda text: "[" * 20_000 + "}",
        lambda text: "\xff" + text,
        lambda text: " " * 20_000 + text,
        lambda text: text.replace('"files"', '"filed"'),
    ],
)
def test_a_glance_says_of_a_damaged_head_what_reading_all_says(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    layout = Layout(tmp_path)
    write_long_manifest(layout, write_checkpoint(layout, 5))
    path = layout.published(5) / MANIFEST
    path.write_text(spoil(path.read_text()), encoding="latin-1")
    (whole,) = catalog.published(layout)
    (glimpsed,) = catalog.glance(layout)
    assert (glimpsed.problem, glimpsed.path) == (whole.problem, whole.path)


def test_a_glance_misses_damage_among_the_files(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_long_manifest(layout, write_checkpoint(layout, 5), damaged=True)
    assert [found.problem for found in catalog.glance(layout)] == [""]
    (whole,) = catalog.published(layout)
    assert whole.problem.startswith("manifest.json is damaged")


@pytest.mark.parametrize("code", [errno.EBADMSG, errno.EUCLEAN])
def test_what_a_file_system_says_of_a_damaged_file_is_the_checkpoints_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    layout = Layout(tmp_path)
    manifest = write_checkpoint(layout, 1)

    def fail(_path: Path) -> FileRecord:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(catalog, "file_record", fail)
    problem = catalog.verify(layout.published(1), manifest, [FILE])
    assert problem == f"{FILE} cannot be read ({os.strerror(code)})"


@pytest.mark.parametrize(
    ("times", "expected"), [(2, f"{FILE} cannot be read (Input/output error)"), (1, "")]
)
def test_an_input_output_error_is_the_files_where_it_comes_again_after_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, expected: str
) -> None:
    layout, errors = Layout(tmp_path), [OSError(errno.EIO, os.strerror(errno.EIO))] * times
    manifest, read = write_checkpoint(layout, 1), catalog.file_record

    def fail(path: Path) -> FileRecord:
        if errors:
            raise errors.pop()
        return read(path)

    monkeypatch.setattr(catalog, "file_record", fail)
    assert catalog.verify(layout.published(1), manifest, [FILE]) == expected


def test_what_older_generations_left_half_written_is_swept(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_checkpoint(layout, 1)
    mine, older = GenerationNumber(2, 1), GenerationNumber(1, 9)
    half = (
        layout.temporary(2, older),
        layout.temporary(2, mine),
        layout.corrupt(1, older),
        layout.removed(layout.published(3)),
    )
    for directory in half:
        directory.mkdir()
    catalog.sweep(layout, mine)
    assert sorted(path.name for path in layout.checkpoints.iterdir()) == [
        ".corrupt-step-1-1-9",
        "step-1",
        "step-2.tmp-2-1",
    ]


def test_what_is_being_swept_is_never_seen_with_only_some_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may give it its name in this very moment."""
    layout, older = Layout(tmp_path), GenerationNumber(1, 9)
    layout.temporary(2, older).mkdir(parents=True)
    emptied: list[str] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: emptied.append(path.name))
    catalog.sweep(layout, GenerationNumber(2, 1))
    assert emptied == [".removed-step-2.tmp-1-9"]


def test_what_older_generations_set_aside_as_abandoned_goes_when_one_is_published(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    mine, older = GenerationNumber(2, 1), GenerationNumber(1, 9)
    abandoned = (
        layout.stale(5, older),
        layout.stale(5, older).with_suffix(".2"),
        layout.stale(5, mine),
    )
    for directory in (*abandoned, layout.corrupt(4, older)):
        directory.mkdir(parents=True, exist_ok=True)
    assert {path.name for path in catalog.stale(layout, mine)} == {
        path.name for path in abandoned[:2]
    }


def test_nothing_set_aside_is_overwritten(tmp_path: Path) -> None:
    layout, target = Layout(tmp_path), tmp_path / "checkpoints" / ".corrupt-step-1-1-1"
    names = []
    for _ in range(3):
        write_checkpoint(layout, 1)
        names.append(catalog.set_aside(layout.published(1), target).name)
    assert names == [".corrupt-step-1-1-1", ".corrupt-step-1-1-1.2", ".corrupt-step-1-1-1.3"]
    assert catalog.has_corrupt(layout)


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert catalog.published(Layout(tmp_path / "new")) == []
    assert not catalog.has_corrupt(Layout(tmp_path / "new"))


def _required_fields() -> int:
    return sum(field.is_required() for field in Manifest.model_fields.values())
