"""A checkpoint that a library writes is whole, or nobody loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.whole_folders import (
    LIST_FILE,
    WholeFolders,
    is_whole,
    saves_directory,
)


def save(
    folders: WholeFolders, step: int, content: str = "state", best: Path | None = None
) -> Path:
    folders.begin(step)
    folder = folders.of_step(step)
    (folder / "ranks").mkdir(parents=True)
    (folder / "model").write_text(content)
    (folder / "ranks/0").write_text(content)
    folders.publish(folder, best)
    return folder


def interrupt(folders: WholeFolders, step: int) -> None:
    folders.of_step(step).mkdir()
    (folders.of_step(step) / "model").write_text("half")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_newest_whole_folder_is_loaded(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    assert folders.newest() is None
    save(folders, 9)
    newest = save(folders, 10)
    assert folders.newest() == newest


def test_a_folder_without_a_list_was_interrupted(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    whole = save(folders, 10)
    interrupt(folders, 20)
    assert folders.newest() == whole


def test_a_folder_without_files_is_not_whole(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    folder = folders.of_step(1)
    folder.mkdir()
    folders.publish(folder)
    assert folders.newest() is None


@pytest.mark.parametrize("step", ["٧", "07", "-1", "1" * 16, "7\n"])
def test_only_the_names_of_steps_count(step: str, tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    save(folders, 7).rename(tmp_path / f"checkpoint-{step}")
    assert folders.newest() is None


UNREADABLE = (
    "[" * 100_000,
    "[]",
    '{"sizes": {}}',
    '{"number": true, "sizes": {"model": 5, "ranks/0": 5}}',
    '{"number": 1e400, "sizes": {"model": 5, "ranks/0": 5}}',
    '{"number": 9, "sizes": 5}',
)


@pytest.mark.parametrize("damage", ["shorter", "missing", "more", "linked", *UNREADABLE])
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
        case "linked":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case _:
            (damaged / LIST_FILE).write_text(damage)
    assert folders.newest() == whole


def test_only_the_last_whole_ones_are_kept(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        save(folders, step)
    assert names(tmp_path) == {"checkpoint-2", "checkpoint-3"}


def test_the_newest_is_the_one_that_was_published_last(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path, keep_last=2)
    for step in (100, 200, 30):  # the last one is of a run that began anew
        save(folders, step)
    assert folders.newest() == folders.of_step(30)
    assert names(tmp_path) == {"checkpoint-200", "checkpoint-30"}


def test_a_checkpoint_is_declared_whole_a_second_time(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    save(folders, 2)
    folder = save(folders, 1)
    (folder / "model").write_text("another state")
    folders.publish(folder)
    assert folders.newest() == folder


def test_what_a_crash_left_of_writing_the_list_is_no_file_of_the_checkpoint(tmp_path: Path) -> None:
    folder = save(WholeFolders(tmp_path), 1)
    (folder / f".{LIST_FILE}.77").write_text("{")
    assert is_whole(folder)


def test_the_best_one_is_kept_as_well(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path, keep_last=1)
    best = save(folders, 1)
    for step in (2, 3):
        save(folders, step, best=best)
    assert names(tmp_path) == {"checkpoint-1", "checkpoint-3"}


def test_what_was_interrupted_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    whole = save(folders, 1)
    interrupt(folders, 2)
    (tmp_path / ".deleted-checkpoint-0-7").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-3").write_text("a file")
    folders.delete_interrupted()
    assert names(tmp_path) == {whole.name, "checkpoint-best", "checkpoint-3"}


def test_what_a_link_leads_to_is_neither_loaded_nor_deleted(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    folders = WholeFolders(saves)
    kept = save(WholeFolders(tmp_path / "kept"), 9)
    save(folders, 1)
    folders.of_step(9).symlink_to(kept)
    (saves / ".deleted-checkpoint-9-7").symlink_to(kept)
    folders.delete_interrupted()
    assert folders.newest() == folders.of_step(1)
    folders.begin(9)
    assert is_whole(kept)
    assert names(saves) == {"checkpoint-1"}


@pytest.mark.parametrize("what", ["whole", "file", "dangling"])
def test_whatever_stands_in_the_place_of_a_save_is_deleted(what: str, tmp_path: Path) -> None:
    folders = WholeFolders(tmp_path)
    place = folders.of_step(1)
    match what:
        case "whole":
            save(folders, 1)
        case "file":
            place.write_text("a file")
        case _:
            place.symlink_to("nowhere")
    folders.begin(1)
    assert not names(tmp_path)


def test_remains_that_cannot_be_deleted_do_not_stop_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = WholeFolders(tmp_path)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    for _ in range(3):
        save(folders, 1)
    assert folders.newest() == folders.of_step(1)
    assert len(names(tmp_path)) == 3


def test_the_list_names_every_file_with_its_size(tmp_path: Path) -> None:
    folder = save(WholeFolders(tmp_path), 1)
    assert json.loads((folder / LIST_FILE).read_text())["sizes"] == {"model": 5, "ranks/0": 5}


@pytest.mark.parametrize("count", [0, True, 2.5, float("nan")])
def test_less_than_one_checkpoint_cannot_be_kept(count: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"keep_last: {count}: give a whole number, 1 or"):
        WholeFolders(tmp_path, keep_last=count)


def test_saves_belong_in_the_folder_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path / "job"))
    assert saves_directory() == tmp_path / "job/saves"
    monkeypatch.delenv("REGROUP_DIRECTORY")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/code/train.py"])
    assert saves_directory() == tmp_path / "regroup-runs/train/saves"
