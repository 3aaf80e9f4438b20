"""What links and pipes among the files of samples may not do: others may write to the claim."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regroup_trainer.checkpoint.volume_calls import describe
from regroup_trainer.data import files, token_run
from regroup_trainer.data.files import find, fingerprint, unreadable
from regroup_trainer.data.token_cache import tokens_of
from regroup_trainer.data.token_run import Tokens
from regroup_trainer.errors import DataError
from tests.support.samples import config, dataset, inputs


@pytest.fixture(autouse=True)
def in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "198.18.0.1")


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder on another file system than that of the image, as a claim is."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == Path("/").stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own")
        yield Path(folder)


@pytest.fixture
def token(tmp_path: Path, volume: Path) -> Path:
    """A file of the pod alone."""
    assert tmp_path.stat().st_dev != volume.stat().st_dev
    path = tmp_path / "pod" / "token.txt"
    path.parent.mkdir()
    path.write_text("secret")
    return path


def names(*paths: Path) -> list[str]:
    return [file.name for file in find([str(path) for path in paths], "*.txt", "data.paths")]


def test_a_link_among_the_files_of_a_volume_does_not_lead_to_a_file_of_the_pod(
    volume: Path, token: Path
) -> None:
    (volume / "a.txt").symlink_to(token)
    with pytest.raises(DataError, match=r"a\.txt is a link to another file system"):
        names(volume)
    with pytest.raises(DataError, match=r"a\.txt is a link to another file system"):
        names(volume / "a.txt")


def test_neither_does_a_link_in_place_of_a_folder(volume: Path, token: Path) -> None:
    (volume / "corpus").symlink_to(token.parent)
    for path in (volume / "corpus", volume / "corpus" / "token.txt"):
        with pytest.raises(DataError, match="corpus is a link to another file system"):
            names(path)


def test_nor_one_that_takes_the_place_of_a_file_that_was_found(volume: Path, token: Path) -> None:
    (volume / "a.txt").write_text("text")
    (file,) = find([str(volume)], "*.txt", "data.paths")
    assert file.read() == b"text"
    (volume / "a.txt").unlink()
    (volume / "a.txt").symlink_to(token)
    with pytest.raises(DataError, match=r"a\.txt is a link to another file system"):
        file.read()
    assert replace(file, device=None).read() == b"secret"


@pytest.mark.parametrize("stays_open", [False, True])
def test_nor_one_that_takes_the_place_of_a_token_file_while_it_is_read(
    volume: Path, token: Path, stays_open: bool
) -> None:
    token.write_bytes(b"secret" * 100)
    path = volume / "a.bin"
    path.write_bytes(bytes(600))
    data = dataset(config("tokens", path), 2, volume)
    if stays_open:
        data.read_training(np.array([0]))
    path.unlink()
    path.symlink_to(token)
    if stays_open:
        assert inputs(data, 1) == [[0, 0]], "it is the file that was found"
        token_run._opened.cache_clear()
    with pytest.raises(DataError, match=r"a\.bin is a link to another file system"):
        data.read_training(np.array([0]))


def test_nor_one_in_place_of_tokens_that_a_job_has_kept(volume: Path, token: Path) -> None:
    def make() -> list[Tokens]:
        return [np.zeros(3, dtype=np.int64)]

    tokens_of(volume, "key", 256, make)
    kept = volume / "tokens" / "key.bin"
    kept.unlink()
    kept.symlink_to(token)
    with pytest.raises(DataError, match=r"key\.bin is a link to another file system"):
        tokens_of(volume, "key", 256, make).read(0, 3)


def test_what_takes_the_place_of_a_file_is_not_hashed(volume: Path, token: Path) -> None:
    path = volume / "a.txt"
    path.write_text("text")
    found = find([str(volume)], "*.txt", "data.paths")
    path.unlink()
    path.symlink_to(token)
    with pytest.raises(DataError, match=r"a\.txt is a link to another file system"):
        fingerprint(found)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"a\.txt is no file"):
        fingerprint(found)


def test_links_within_a_volume_and_those_of_the_image_are_followed(
    volume: Path, tmp_path: Path
) -> None:
    (volume / "blob").write_text("text")
    (volume / "shown").mkdir()
    (volume / "shown" / "a.txt").symlink_to("../blob")
    if tmp_path.stat().st_dev == Path("/").stat().st_dev:
        (tmp_path / "data").symlink_to(volume)
        assert names(tmp_path / "data" / "shown") == ["a.txt"]
    assert names(volume / "shown", volume / "shown" / "a.txt") == ["a.txt", "a.txt"]


def test_outside_pods_a_link_may_lead_to_another_disk(
    volume: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    (volume / "a.txt").symlink_to(token)
    (volume / "corpus").symlink_to(token.parent)
    (file, *others) = find([str(volume), str(volume / "corpus")], "*.txt", "data.paths")
    assert (file.read(), len(others)) == (b"secret", 1)


def test_a_pipe_holds_nobody_up(volume: Path) -> None:
    os.mkfifo(volume / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt is no file"):
        names(volume)


def test_a_name_that_no_message_can_have_is_reported(volume: Path) -> None:
    (volume / "a\udcff.txt").write_text("text")
    with pytest.raises(DataError, match=r"a\\udcff\.txt has a name that is no UTF-8: rename it"):
        names(volume)


@pytest.mark.parametrize("source", ["text", "tokens"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_an_error_that_may_pass_is_raised_as_it_is_and_names_the_file(
    volume: Path, monkeypatch: pytest.MonkeyPatch, source: str, code: int
) -> None:
    """So that it can be waited for."""
    refuse_to_open(monkeypatch, code)
    (volume / "a.txt").write_bytes(bytes(600))
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        dataset(config(source, volume, pattern="*.txt"), 2, volume)
    assert caught.value.filename == str(volume / "a.txt")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EACCES, rf"make it readable for user {os.getuid()}"),
        (errno.ENOENT, "put it there again, or name another path"),
    ],
)
def test_an_error_that_lasts_says_what_to_change(
    volume: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    refuse_to_open(monkeypatch, code)
    (volume / "a.txt").write_bytes(bytes(600))
    what = rf"data\.paths: .*/a\.txt cannot be read \({os.strerror(code)}\): {advice}"
    with pytest.raises(DataError, match=what):
        dataset(config("text", volume, pattern="*.txt"), 2, volume)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_no_permission_is_asked_for_where_the_volume_fails(code: int) -> None:
    message = str(unreadable(OSError(code, os.strerror(code), "/data/a.bin")))
    assert message.endswith(f"/data/a.bin cannot be read ({os.strerror(code)}): repair its volume")


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Opening a file of samples gives this error, without its name, as reading one does."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "open_file", refuse)


def test_a_folder_that_is_gone_is_named_in_printable_text(volume: Path) -> None:
    gone = OSError(2, "No such file or directory", str(volume / "a\udcff\x1b[2J"))
    for text in (str(unreadable(gone)), describe(gone)):
        assert r"a\udcff\x1b[2J" in text
        assert text.isprintable()
