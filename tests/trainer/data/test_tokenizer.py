"""Vocabularies, and the tokens that are made once."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from regroup_trainer.data import tokenizer
from regroup_trainer.data.files import File
from regroup_trainer.data.tokenizer import BpeName, ByteTokenizer, pieces, tokenizer_of
from regroup_trainer.errors import ConfigurationError, StorageError
from tests.support.optional_packages import needs_bpe
from tests.support.samples import config, dataset, inputs

TEXT = inspect.getsource(inspect) + "):\n// \n\n \n\n\tend  \n x\n\n\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.py").write_text("Training goes on.\n" * 20)
    (folder / "b.py").write_text("def answer() -> int:\n    return 42\n")
    return folder


@needs_bpe
def test_the_vocabulary_is_tiktokens() -> None:
    document = tokenizer_of("cl100k").document("hello world<|endoftext|>")
    assert document.tolist() == [15339, 1917, 27, 91, 8862, 728, 428, 91, 29, 100257]
    assert tokenizer_of("cl100k").classes == 100277
    assert tokenizer_of("o200k").document("hello world").tolist() == [24912, 2375, 199999]


@needs_bpe
@pytest.mark.parametrize("name", ["cl100k", "o200k"])
def test_long_text_is_cut_where_no_token_is(name: BpeName, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokenizer_of(name).document(TEXT)
    monkeypatch.setattr(tokenizer, "_PIECE", 1000)
    assert len(list(pieces(TEXT))) > 100
    assert "".join(pieces(TEXT)) == TEXT
    assert tokenizer_of(name).document(TEXT).tolist() == whole.tolist()


def test_a_line_without_an_end_is_cut_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_PIECE", 10)
    assert list(pieces("x" * 25)) == ["x" * 10, "x" * 10, "x" * 5]


def test_bytes_of_a_document_end_with_a_zero() -> None:
    assert bytes(ByteTokenizer().document("né")) == "né\0".encode()


@needs_bpe
def test_the_model_learns_of_the_vocabulary_from_the_data(corpus: Path, tmp_path: Path) -> None:
    data = dataset(config("text", corpus, tokenizer="cl100k"), 4, tmp_path)
    assert data.classes == 100277
    (first,) = inputs(data, 0)
    assert first == tokenizer_of("cl100k").document("Training goes on.\n" * 20)[:4].tolist()


@needs_bpe
def test_tokens_are_made_once_per_job(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataset(config("text", corpus, tokenizer="cl100k"), 4, tmp_path)
    monkeypatch.setattr(tokenizer.BpeTokenizer, "document", lambda *_: pytest.fail("made again"))
    again = dataset(config("text", corpus, tokenizer="cl100k"), 4, tmp_path)
    ids = np.arange(first.samples)
    np.testing.assert_array_equal(
        again.read_training(ids).targets, first.read_training(ids).targets
    )
    assert again.fingerprint == first.fingerprint
    assert [path.suffix for path in (tmp_path / "tokens").iterdir()] == [
        ".bin",
        ".bin",
    ]  # and nothing unfinished


@needs_bpe
def test_another_vocabulary_is_another_dataset(corpus: Path, tmp_path: Path) -> None:
    prints = {
        dataset(config("text", corpus, tokenizer=name), 4, tmp_path).fingerprint
        for name in ("byte", "cl100k", "o200k")
    }
    assert len(prints) == 3


def test_tokens_that_cannot_be_written_raise_a_storage_error(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("in the way")
    with pytest.raises(
        StorageError,
        match=r"tokens cannot be written to .*/tokens/.* \(File exists\): let user \d+ write there",
    ):
        dataset(config("text", corpus, tokenizer="cl100k"), 4, tmp_path)


def test_a_half_made_file_does_not_stay(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(File, "read", broken)
    with pytest.raises(KeyboardInterrupt):
        dataset(config("text", corpus, tokenizer="cl100k"), 4, tmp_path)
    assert list((tmp_path / "tokens").iterdir()) == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rs_bpe.bpe", None)
    with pytest.raises(
        ConfigurationError, match=r"data\.tokenizer: 'o200k' needs the package rs-bpe"
    ):
        tokenizer_of("o200k").document("x")
