"""A folder of weights is read; one that does not fit together, or attacks, is refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from regroup_trainer.checkpoint import safetensors_folder
from regroup_trainer.checkpoint.safetensors_folder import (
    CONFIG,
    INDEX,
    read_headers,
    read_json,
    require_none,
)
from regroup_trainer.errors import DataError
from tests.support.hugging_face import write_split

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def two_files(folder: Path, **places: Any) -> Path:
    a, b = torch.zeros(2, 3), torch.zeros(4, dtype=torch.bfloat16)
    return write_split(folder, {FIRST: {"a": a}, SECOND: {"b": b}}, **places)


def test_headers_say_where_each_weight_is_and_what(tmp_path: Path) -> None:
    stored = read_headers(two_files(tmp_path))
    assert {name: (it.file.name, it.shape, it.dtype) for name, it in stored.items()} == {
        "a": (FIRST, (2, 3), "F32"),
        "b": (SECOND, (4,), "BF16"),
    }


def test_files_beside_the_model_are_ignored(tmp_path: Path) -> None:
    save_file({"layers.0.wq": torch.zeros(1)}, two_files(tmp_path) / "consolidated.safetensors")
    assert set(read_headers(tmp_path)) == {"a", "b"}


def test_files_may_be_links_as_in_the_cache_of_hugging_face(tmp_path: Path) -> None:
    folder = two_files(tmp_path / "snapshot")
    (folder / FIRST).rename(tmp_path / "blob")
    (folder / FIRST).symlink_to(tmp_path / "blob")
    assert set(read_headers(folder)) == {"a", "b"}


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "./x.safetensors",
        "x/y.safetensors",
        "..",
        "",
        "config.json",
        "pytorch_model.bin",
        7,
        None,
        ["x.safetensors"],
        "x" * 10**5,
    ],
)
def test_an_index_names_only_safetensors_beside_it(tmp_path: Path, file: Any) -> None:
    save_file({"c": torch.zeros(1)}, tmp_path / "secret.safetensors")
    with pytest.raises(DataError, match=r"the file of c is .*, no \*\.safetensors beside") as it:
        read_headers(two_files(tmp_path / "hf", c=file))
    assert len(str(it.value)) < 600


@pytest.mark.parametrize("file", [*(f"{it}.safetensors" for it in ("absent", "x" * 5000, "\0"))])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, file: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_headers(two_files(tmp_path, c=file))


def test_a_weight_that_is_not_in_its_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not where the index says: b, c: copy"):
        read_headers(two_files(tmp_path, b=FIRST, c=SECOND))


def test_a_weight_in_two_files_is_named(tmp_path: Path) -> None:
    two_files(tmp_path)
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(4)}, tmp_path / SECOND)
    with pytest.raises(DataError, match=f"weights in two files: a in {FIRST} and {SECOND}"):
        read_headers(tmp_path)


def test_one_file_beside_an_index_is_ambiguous(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, two_files(tmp_path) / "model.safetensors")
    with pytest.raises(DataError, match=r"has model\.safetensors and model\.safetensors\.index"):
        read_headers(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, ["a"], 1])
def test_an_index_without_weights_is_refused(tmp_path: Path, weight_map: Any) -> None:
    (two_files(tmp_path) / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(DataError, match="weight_map is no object with weights"):
        read_headers(tmp_path)


def header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no safetensors",
        struct.pack("<Q", 2**60),
        header(b"{"),
        header(b"[" * 10**5),
        header(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}', bytes(4)),
        header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'),
        header(b'{"a":{"dtype":"??","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        header(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            bytes(8),
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read \(.*copy it there"):
        read_headers(tmp_path)


def test_a_folder_without_weights_or_a_pipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read \(no such file, or"):
        read_headers(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / CONFIG)
    with pytest.raises(DataError, match="no such file"):
        read_headers(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe\xfd", "decode"),
        (b"[]", "no JSON object"),
        (b"7", "no JSON object"),
        (b'{"a": 1, "a": 2}', "a name is given twice"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "digits"),
        (b"[" * 1_000_000, "recursion|nest|[Ss]tack overflow"),
        (b" " * 2**20 + b"{}", "more than 1048576 bytes"),
    ],
)
def test_what_is_no_config_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / CONFIG).write_bytes(content)
    with pytest.raises(DataError, match=rf"config\.json cannot be read \(.*({problem})") as it:
        read_json(tmp_path, CONFIG)
    assert len(str(it.value)) < 600


ESCAPE = "\x1b[31mred"


def test_names_in_messages_cannot_command_a_terminal(tmp_path: Path) -> None:
    problems = {"surplus weights": [ESCAPE]}
    with pytest.raises(DataError, match=r"surplus weights: .x1b\[31mred") as listed:
        require_none(tmp_path, problems)
    assert ESCAPE not in str(listed.value)
    for places in ({ESCAPE: "no file"}, {"c": f"{ESCAPE}.safetensors"}, {"c": f"{ESCAPE}.bin"}):
        with pytest.raises(DataError) as refused:
            read_headers(two_files(tmp_path, **places))
        assert str(refused.value).isprintable()


def test_a_header_that_takes_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(header(b"{}" + b" " * 2**24))
    with pytest.raises(DataError, match="its header has 16777218 bytes, more than 16777216"):
        read_headers(tmp_path)


def test_more_weights_than_any_model_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_folder, "_MOST_WEIGHTS", 1)
    with pytest.raises(DataError, match="it names more than"):
        read_headers(two_files(tmp_path))
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).unlink()
    with pytest.raises(DataError, match="it has more than"):
        read_headers(tmp_path)
