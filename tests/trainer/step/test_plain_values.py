"""A state holds tensors and plain values, and is read without running code."""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from regroup_trainer.errors import CheckpointError, ConfigurationError
from regroup_trainer.protocol.environment import TRUST_CHECKPOINTS
from regroup_trainer.step.plain_values import load_plain, require_plain
from tests.support.hostile_pickle import saved

PLAIN: list[Any] = [
    *(None, True, 1, 2.5, 10**30, 1j, "text", b"bytes", b"", {1, 2}, (1, (2,)), [[]]),
    *(OrderedDict(a=1), Counter({10: 1}), {"a": {3: [4]}}),
    *(torch.Size([2]), torch.bfloat16, torch.device("cpu")),
    *(numpy.float64(0.1), numpy.float32(2.5), numpy.int64(-3), numpy.bool_(True), numpy.uint8(7)),
]


def stored(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: f"{type(value).__name__}")
def test_a_plain_value_is_saved_and_comes_back(value: Any) -> None:
    require_plain("state", value)
    assert load_plain(stored(value), "state") == value


def test_tensors_come_back() -> None:
    content: dict[str, Any] = {
        "average": [torch.arange(3.0)],
        "scale": torch.nn.Parameter(torch.ones(2)),
    }
    require_plain("state", content)
    back = load_plain(stored(content), "state")
    assert torch.equal(back["average"][0], content["average"][0])
    assert isinstance(back["scale"], torch.nn.Parameter)


ARRAYS = [
    numpy.arange(6, dtype="f4").reshape(2, 3),
    numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    numpy.arange(4, dtype=">i2"),
    numpy.array([True, False]),
    numpy.array(3.0),
    numpy.zeros((0, 4)),
    numpy.arange(9.0)[::2],
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_an_array_of_numbers_comes_back_wherever_it_stands(array: Any) -> None:
    inner = {"a": array, "pair": (1, [array])}
    require_plain("state", inner)
    back = load_plain(stored(inner), "state")
    for found in (back["a"], back["pair"][1][0]):
        assert type(found) is numpy.ndarray
        assert found.dtype == array.dtype
        assert found.flags.writeable
        numpy.testing.assert_array_equal(found, array)
    assert back["a"] is back["pair"][1][0]


def test_an_array_in_a_list_that_contains_itself_comes_back() -> None:
    circle: list[Any] = [numpy.ones(2)]
    circle.append(circle)
    back = load_plain(stored(circle), "state")
    assert back[0].tolist() == [1, 1]
    assert back[1] is back


def test_attributes_of_a_tensor_are_looked_at_and_come_back() -> None:
    tensor: Any = torch.nn.Parameter(torch.ones(2))
    tensor.scale = numpy.ones(1)
    require_plain("state", tensor)
    assert load_plain(stored(tensor), "state").scale.tolist() == [1]
    tensor.owner = Own()
    with pytest.raises(
        ConfigurationError, match=r"state\['w'\].owner is a .*Own, which a checkpoint"
    ):
        require_plain("state", {"w": tensor})


class Own:
    """A user's class."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (numpy.array([None, 1]), "state is a numpy.ndarray"),
        (numpy.array(["a"]), "state is a numpy.ndarray"),
        (numpy.ones(2).view(numpy.matrix), "state is a numpy.matrix"),
        (numpy.datetime64(1, "s"), "state is a numpy.datetime64"),
        ({"seen": [1, Own()]}, r"state\['seen'\]\[1\] is a .*test_plain_values.Own"),
        ({"f": len}, r"state\['f'\] is a builtins.builtin_function_or_method"),
        (defaultdict(int), "state is a collections.defaultdict"),
        ({Own: 1}, r"state, key <class '.*Own'> is a builtins.type"),
    ],
)
def test_what_a_restore_would_refuse_is_refused_by_its_name(value: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{words}, which a checkpoint cannot hold: its"):
        require_plain("state", value)
    with pytest.raises(CheckpointError, match="state holds more than tensors"):
        load_plain(stored(value), "state")


def test_a_value_that_contains_itself_or_is_nested_deeply_is_looked_at() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    deep.append(deep)
    require_plain("state", deep)


def test_reading_runs_no_code(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"of 'a' holds more than .*it names posix.mkdir\)"):
        load_plain(saved(tmp_path / "ran"), "the state of 'a'")
    assert not (tmp_path / "ran").exists()


def test_objects_of_an_older_release_are_read_if_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = stored({"weights": numpy.array([1, 1], dtype=object)})
    with pytest.raises(CheckpointError, match=f"{TRUST_CHECKPOINTS}=1"):
        load_plain(content, "the state of 'a'")
    monkeypatch.setenv(TRUST_CHECKPOINTS, "1")
    assert load_plain(content, "the state of 'a'")["weights"].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["O", "V8", "(2,)f8", "f8,O"])
def test_a_hostile_number_of_numpy_is_no_number(dtype: str) -> None:
    """numpy would take a type with pointers in it, and follow the pointers."""

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            scalar: Any = numpy.float64(1).__reduce__()[0]
            return scalar, (numpy.dtype(dtype), b"\0" * 16)

    with pytest.raises((CheckpointError, pickle.UnpicklingError)):
        load_plain(stored(Hostile()), "state")


@pytest.mark.parametrize(
    ("shape", "content"),
    [
        ((-1, -2), b"\0" * 16),
        ((3,), b"\0" * 16),
        ((2,), b"\0" * 15),
        (2**62, b""),
        ("a", b"\0" * 8),
    ],
    ids=["negative", "too long", "half a number", "huge", "words"],
)
def test_a_damaged_array_of_numpy_is_refused(shape: Any, content: bytes) -> None:
    class Damaged:
        def __reduce__(self) -> tuple[Any, ...]:
            array: Any = numpy.ones(2)
            reconstruct, made_with, _ = array.__reduce__()
            return reconstruct, made_with, (1, shape, numpy.dtype("f8"), False, content)

    with pytest.raises((CheckpointError, pickle.UnpicklingError)):
        load_plain(stored(Damaged()), "state")
