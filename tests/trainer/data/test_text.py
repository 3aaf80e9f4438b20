"""Text as samples, and what is wrong with text that cannot be."""

from __future__ import annotations

import hashlib
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regroup_trainer.data import Dataset, text
from regroup_trainer.data.default_text import FINGERPRINT, default_text
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.config import DataConfig
from tests.support import samples
from tests.support.other_user import open_to_all, other_user
from tests.support.samples import dataset

DEFAULT_TEXT_SHA256 = "35031f6f4874be890daba7d45747237fa9b53c97744b19582a30fdf22afed0d0"


def folder_with(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / f"{name}.py").write_text(content)
    return path


def config(*paths: Path, held_out_percent: int = 0, **fields: Any) -> DataConfig:
    return samples.config("text", *paths, held_out_percent=held_out_percent, **fields)


def text_of(tokens: np.ndarray[Any, Any]) -> list[bytes]:
    return [bytes(row.astype(np.uint8)) for row in tokens]


def read(data: Dataset, *ids: int) -> list[bytes]:
    return text_of(data.read_training(np.array(ids)).inputs)


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = dataset(config(folder_with(tmp_path, b="second.", a="first")), 11, tmp_path)
    assert read(data, 0) == [b"firstsecond"]


def test_samples_are_inputs_and_the_bytes_that_follow_them(tmp_path: Path) -> None:
    data = dataset(config(folder_with(tmp_path, a="abcdefg")), 3, tmp_path)
    assert (data.samples, data.targets_per_sample, data.classes) == (2, 3, 256)
    arrays = data.read_training(np.array([1, 0]))
    assert text_of(arrays.inputs) == [b"def", b"abc"]
    assert text_of(arrays.targets) == [b"efg", b"bcd"]


def test_the_held_out_tail_is_not_trained_on(tmp_path: Path) -> None:
    files = folder_with(tmp_path, a="x" * 80 + "y" * 20)
    data = dataset(config(files, held_out_percent=20), 4, tmp_path, evaluate=True)
    assert set(b"".join(read(data, *range(data.samples)))) == {ord("x")}
    assert data.held_out_samples == 4
    assert set(b"".join(text_of(data.read_held_out(np.arange(4)).targets))) == {ord("y")}


def test_files_of_their_own_may_be_held_out(tmp_path: Path) -> None:
    training, apart = folder_with(tmp_path / "a", a="x" * 9), folder_with(tmp_path / "b", a="y" * 9)
    data = dataset(
        config(training, held_out_percent=5, held_out_paths=(str(apart),)),
        4,
        tmp_path,
        evaluate=True,
    )
    assert (data.samples, data.held_out_samples) == (2, 2)
    assert text_of(data.read_held_out(np.array([1])).inputs) == [b"yyyy"]


def test_large_text_is_read_in_place_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder_with(tmp_path, a="abc", b="", c="defgh", d="ij", e="klmnopq")
    joined = dataset(config(files), 4, tmp_path)
    monkeypatch.setattr(text, "_IN_MEMORY", 10)
    mapped = dataset(config(files), 4, tmp_path)
    ids = np.arange(joined.samples)
    np.testing.assert_array_equal(
        mapped.read_training(ids).targets, joined.read_training(ids).targets
    )
    assert read(mapped, *ids) == [b"abcd", b"efgh", b"ijkl", b"mnop"]
    assert mapped.fingerprint == joined.fingerprint


def test_the_default_text_is_the_same_everywhere(tmp_path: Path) -> None:
    data = dataset(DataConfig(), 128, tmp_path, evaluate=True)
    text = default_text().read()
    assert hashlib.sha256(text).hexdigest() == DEFAULT_TEXT_SHA256
    assert (data.samples + data.held_out_samples) * 128 > 0.99 * len(text)
    assert data.fingerprint == FINGERPRINT


def test_the_default_text_can_be_learned() -> None:
    """Even gzip needs less than half of the entropy of single bytes."""
    text = default_text().read()
    shares = [text.count(byte) / len(text) for byte in set(text)]
    entropy = -sum(share * math.log2(share) for share in shares)
    assert 8 * default_text().size / len(text) < entropy / 2


def test_a_pattern_without_paths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.pattern: 'a\*\.py' chooses among .* data\.paths"):
        dataset(DataConfig(pattern="a*.py"), 32, tmp_path)


@pytest.mark.parametrize("change", [{"a": "text!"}, {"c": "more"}])
def test_the_fingerprint_changes_with_the_text(tmp_path: Path, change: dict[str, str]) -> None:
    before = dataset(config(folder_with(tmp_path, a="text.")), 2, tmp_path).fingerprint
    assert dataset(config(folder_with(tmp_path, **change)), 2, tmp_path).fingerprint != before


def test_the_fingerprint_does_not_depend_on_where_the_text_is_mounted(tmp_path: Path) -> None:
    one, two = folder_with(tmp_path / "one", a="text."), folder_with(tmp_path / "two", a="text.")
    assert (
        dataset(config(one), 2, tmp_path).fingerprint
        == dataset(config(two), 2, tmp_path).fingerprint
    )


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data\.paths: .*/nowhere does not exist on this worker: mount it"
    ):
        dataset(config(tmp_path / "nowhere"), 2, tmp_path)
    with pytest.raises(DataError, match=r"data\.heldOutPaths: .*/nowhere does not exist"):
        dataset(DataConfig(held_out_paths=(str(tmp_path / "nowhere"),)), 2, tmp_path)


def test_a_folder_without_matching_files_names_the_pattern(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.pattern: '\*\.py' matches no file below"):
        dataset(config(tmp_path), 2, tmp_path)


def test_too_little_text_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5 tokens for training are too few for one sample of 129"):
        dataset(config(folder_with(tmp_path, a="short")), 128, tmp_path)


def test_too_little_held_out_text_is_an_error_only_where_it_is_needed(tmp_path: Path) -> None:
    folder_with(tmp_path, a="x" * 300)
    dataset(config(tmp_path, held_out_percent=5), 32, tmp_path)
    with pytest.raises(DataError, match=r"data\.heldOutPercent: 5 % keeps 15 tokens"):
        dataset(config(tmp_path, held_out_percent=5), 32, tmp_path, evaluate=True)


READ_AS_ANOTHER_USER = """\
import sys
from pathlib import Path
from regroup_trainer.data import text  # imported by this user: another may not read the code
from regroup_trainer.errors import DataError
from tests.support import samples
from tests.support.other_user import become_other_user
become_other_user()
folder = Path(sys.argv[1])
try:
    samples.dataset(samples.config("text", folder), 32, folder)
except DataError as error:
    print(error)
"""


def test_a_folder_that_cannot_be_read_is_named_with_the_user(tmp_path: Path) -> None:
    (folder_with(tmp_path, a="x" * 300) / "closed").mkdir(mode=0)
    open_to_all(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", READ_AS_ANOTHER_USER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    refusal = rf"closed cannot be read \(Permission denied\): .* user {other_user()}\b"
    assert re.search(refusal, done.stdout), done.stderr


def test_fields_of_another_source_are_refused() -> None:
    with pytest.raises(ValueError, match=r"samples, classes: of no meaning with source 'text'"):
        DataConfig(samples=5, classes=7)
