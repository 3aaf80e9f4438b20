"""A checkpoint that a library writes is whole, or nobody loads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.whole_folders import (
    LIST_FILE,
    WholeFolders,
    is_whole,
    saves_directory,
)


def save(folders: WholeFolders, step: int, content: str = "state") -> Path:
    folder = folders.begin(step)
    (folder / "ranks").mkdir()
    (folder / "model").write_text(content)
    (folder / "ranks/0").write_text(content)
    folders.publish(folder)
    return folder


def test_the_newest_whole_folder_is_loaded(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    assert folders.newest() is None
    save(folders, 9)
    newest = save(folders, 10)
    assert folders.newest() == newest


def test_a_folder_without_a_list_was_interrupted(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    whole = save(folders, 10)
    (folders.begin(20) / "model").write_text("half")
    assert folders.newest() == whole


@pytest.mark.parametrize("damage", ["shorter", "missing", "more", "list"])
def test_a_folder_that_differs_from_its_list_is_not_whole(damage: str, tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    whole, damaged = save(folders, 10), save(folders, 20)
    file = damaged / "ranks/0"
    match damage:
        case "shorter":
            file.write_text("st")
        case "missing":
            file.unlink()
        case "more":
            file.with_name("1").write_text("of a larger run")
        case _:
            (damaged / LIST_FILE).write_text("[" * 100_000)
    assert folders.newest() == whole


def test_only_the_last_whole_ones_are_kept(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        save(folders, step)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-3"}


def test_the_best_one_is_kept_as_well(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path, keep_last=1)
    best = save(folders, 1)
    for step in (2, 3):
        folders.publish(folders.begin(step), best)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-1", "checkpoint-3"}


def test_what_was_interrupted_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    whole = save(folders, 1)
    (folders.begin(2) / "model").write_text("half")
    (tmp_path / ".deleted-checkpoint-0-7").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-3").write_text("a file")
    folders.delete_interrupted()
    assert {path.name for path in tmp_path.iterdir()} == {
        *(whole.name, "checkpoint-best", "checkpoint-3")
    }


def test_a_save_of_the_same_step_begins_with_an_empty_folder(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    save(folders, 1)
    folder = folders.begin(1)
    assert not list(folder.iterdir())
    assert not is_whole(folder)


def test_the_list_names_every_file_with_its_size(tmp_path: Path) -> None:
    folder = save(WholeFolders(tmp_path), 1)
    assert json.loads((folder / LIST_FILE).read_text()) == {"model": 5, "ranks/0": 5}


def test_less_than_one_checkpoint_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keep_last: 0: give 1 or more"):
        WholeFolders(tmp_path, keep_last=0)


def test_saves_belong_in_the_folder_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path / "job"))
    assert saves_directory() == tmp_path / "job/saves"
    monkeypatch.delenv("REGROUP_DIRECTORY")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/code/train.py"])
    assert saves_directory() == tmp_path / "regroup-runs/train/saves"
