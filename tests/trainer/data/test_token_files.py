"""Token files of nanoGPT and llm.c, and those that are neither."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from regroup_trainer.data import token_run
from regroup_trainer.errors import DataError
from tests.support.samples import config, dataset, inputs, rows

GPT2, LLAMA3 = (20240520, 1, "<u2"), (20240801, 7, "<u4")


def nano_gpt(path: Path, tokens: list[int]) -> Path:
    path.write_bytes(np.array(tokens, dtype="<u2").tobytes())
    return path


def llm_c(path: Path, tokens: list[int], kind: tuple[int, int, str] = GPT2) -> Path:
    magic, version, dtype = kind
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype=dtype).tobytes())
    return path


def test_nano_gpt_files_are_16_bit_tokens(tmp_path: Path) -> None:
    data = dataset(
        config("tokens", nano_gpt(tmp_path / "train.bin", [50256, 1, 2, 3, 4])), 2, tmp_path
    )
    assert (data.samples, data.classes) == (2, 50257)
    assert inputs(data, 1, 0) == [[2, 3], [50256, 1]]


def test_llm_c_files_of_gpt2(tmp_path: Path) -> None:
    data = dataset(config("tokens", llm_c(tmp_path / "a.bin", list(range(7)))), 3, tmp_path)
    assert (data.samples, data.classes) == (2, 50257)
    assert inputs(data, 0, 1) == [[0, 1, 2], [3, 4, 5]]


def test_llm_c_files_of_llama_3_have_32_bit_tokens(tmp_path: Path) -> None:
    data = dataset(config("tokens", llm_c(tmp_path / "a.bin", [128000, 5, 6], LLAMA3)), 2, tmp_path)
    assert data.classes == 128256
    assert inputs(data, 0) == [[128000, 5]]


def test_shards_are_one_run(tmp_path: Path) -> None:
    for number in range(3):
        llm_c(tmp_path / f"shard_{number}.bin", list(range(10 * number, 10 * number + 5)))
    data = dataset(config("tokens", tmp_path), 4, tmp_path)
    assert data.samples == 3
    assert inputs(data, 0, 1, 2) == [[0, 1, 2, 3], [4, 10, 11, 12], [13, 14, 20, 21]]


def test_more_shards_than_are_kept_open(tmp_path: Path) -> None:
    for number in range(token_run._OPEN_FILES + 3):
        nano_gpt(tmp_path / f"shard_{number:04}.bin", [number, number])
    data = dataset(config("tokens", tmp_path), 2, tmp_path)
    assert inputs(data, *range(data.samples)) == [
        [number, number] for number in range(data.samples)
    ]


def test_validation_files_are_held_out(tmp_path: Path) -> None:
    train, validation = (
        nano_gpt(tmp_path / "train.bin", [1] * 9),
        nano_gpt(tmp_path / "val.bin", [2] * 5),
    )
    data = dataset(
        config("tokens", train, held_out_paths=(str(validation),)), 4, tmp_path, evaluate=True
    )
    assert (data.samples, data.held_out_samples) == (2, 1)
    assert rows(data.read_held_out(np.array([0])).targets) == [[2, 2, 2, 2]]


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", [1, 2, 3], (20240520, 2, "<u2"))
    with pytest.raises(
        DataError, match=r"data\.paths: .*a\.bin is an llm\.c file of version 2: .* version 1 only"
    ):
        dataset(config("tokens", path), 2, tmp_path)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", list(range(10)))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(
        DataError, match=r"a\.bin has 1040 bytes, but its header announces 10 tokens of 2 bytes"
    ):
        dataset(config("tokens", path), 2, tmp_path)
    (tmp_path / "odd.bin").write_bytes(b"abc")
    with pytest.raises(
        DataError, match=r"odd\.bin has 3 bytes, which is no whole number of 16-bit tokens"
    ):
        dataset(config("tokens", tmp_path / "odd.bin"), 2, tmp_path)


def test_tokens_outside_the_vocabulary_name_their_file(tmp_path: Path) -> None:
    nano_gpt(tmp_path / "a.bin", [1, 2, 3, 4])
    nano_gpt(tmp_path / "b.bin", [5, 99, 6, 7])
    data = dataset(config("tokens", tmp_path, classes=65), 2, tmp_path)
    assert inputs(data, 0) == [[1, 2]]
    with pytest.raises(
        DataError, match=r"data\.classes: token 99 in .*/b\.bin is outside the vocabulary of 65"
    ):
        data.read_training(np.array([0, 2]))


def test_no_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.paths: is empty: name \.bin files"):
        dataset(config("tokens"), 2, tmp_path)


def test_a_large_file_is_recognised_by_its_blocks(tmp_path: Path) -> None:
    tokens = np.zeros(4 * 2**20, dtype="<u2")  # 8 MiB
    prints = set()
    for index in (None, 0, len(tokens) // 2 - len(tokens) // 2 % 2**15, len(tokens) - 1):
        changed = tokens.copy()
        if index is not None:
            changed[index] = 1
        (tmp_path / "a.bin").write_bytes(changed.tobytes())
        token_run._opened.cache_clear()
        prints.add(dataset(config("tokens", tmp_path / "a.bin"), 2, tmp_path).fingerprint)
    assert len(prints) >= 3  # first, last, and what a block happens to hit


def test_a_file_that_has_become_shorter_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    path = nano_gpt(tmp_path / "a.bin", list(range(2**14)))
    data = dataset(config("tokens", path), 2, tmp_path)
    os.truncate(path, 2**13)
    assert inputs(data, 0) == [[0, 1]]
    with pytest.raises(DataError, match=r"a\.bin has become shorter than 32\d+ bytes"):
        data.read_training(np.array([data.samples - 1]))


def test_a_read_that_fails_names_its_file_and_the_next_one_opens_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = nano_gpt(tmp_path / "a.bin", [1, 2, 3])
    data = dataset(config("tokens", path), 2, tmp_path)

    def fail(_file: int, _size: int, _offset: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match="Stale file handle") as caught:
            inputs(data, 0)
    assert caught.value.filename == str(path)
    path.unlink()
    nano_gpt(path, [4, 5, 6])
    assert inputs(data, 0) == [[4, 5]]
