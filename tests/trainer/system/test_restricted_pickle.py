"""A pickle is read without running what it names."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from regroup_trainer.system.restricted_pickle import ForbiddenError, read
from tests.support.hostile_pickle import pickled


@dataclass(frozen=True)
class Pair:
    left: int
    right: object


PAIR = (__name__, "Pair")


def test_an_object_becomes_a_record_of_its_state() -> None:
    found, classes = read(pickle.dumps(Pair(1, [Pair(2, None)])), [PAIR])
    assert type(found) is classes[PAIR]
    assert found.state["left"] == 1
    assert found.state["right"][0].state == {"left": 2, "right": None}


def test_a_name_that_is_not_in_the_list_is_refused_and_not_called(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(ForbiddenError, match=r"names posix\.mkdir, which is no part"):
        read(pickled(mark), [PAIR])
    assert not mark.exists()


def test_a_name_of_a_list_is_never_imported(tmp_path: Path) -> None:
    """Even `os.system` in the list would only be a record."""
    found, _ = read(b"cposix\nsystem\n(Vtouch " + str(tmp_path / "ran").encode() + b"\ntR.",
                    [("posix", "system")])  # fmt: skip
    assert found.args == (f"touch {tmp_path / 'ran'}",)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_cannot_set_attributes_of_a_class() -> None:
    """BUILD on a class itself would do that if the class had no method for its state."""
    module, name = PAIR
    hostile = f"c{module}\n{name}\n(N(Vargs\nI1\ndtb.".encode()
    with pytest.raises(TypeError):
        read(hostile, [PAIR])
    found, _ = read(pickle.dumps(Pair(1, 2)), [PAIR])
    assert found.args == ()
