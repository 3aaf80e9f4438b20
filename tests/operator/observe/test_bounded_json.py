"""The decoder of what tenants have a part in: nothing ends it, and nothing valid is changed."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_operator.observe import bounded_json
from regroup_operator.observe.bounded_json import (
    MOST_BYTES,
    MOST_LEVELS,
    UndecodableError,
    decode,
    decode_head,
    is_deep,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.text(alphabet='{}[]"\\/:,aé\n', max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda part: (
        st.lists(part, max_size=4)
        | st.dictionaries(st.text(alphabet='{}[]"\\a', max_size=4), part, max_size=4)
    ),
    max_leaves=30,
)


def depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(depth, parts), default=0)


def cut(value: Any, levels: int) -> Any:
    """The plain, recursive way of saying what a cut document is."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: cut(part, levels - 1) for key, part in value.items()}
    return [cut(part, levels - 1) for part in value]


@given(VALUES, st.booleans())
def test_every_document_within_the_bounds_is_what_pythons_decoder_says(
    value: Any, ascii_only: bool
) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert decode(data) == value
    found = depth(value)
    assert [is_deep(data, levels) for levels in (found - 1, found)] == [found > 0, False]


@given(VALUES, st.integers(1, 4))
def test_what_lies_too_deep_is_cut_out_and_all_else_is_kept(value: Any, levels: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "MOST_LEVELS", levels)
        patch.setattr(bounded_json, "from_json", mock.Mock(side_effect=ValueError))
        assert decode(json.dumps(value).encode()) == cut(value, levels)


@given(VALUES)
def test_a_half_surrogate_is_no_reason_to_refuse_a_document(value: Any) -> None:
    halved = {"half": "\ud800", "rest": value}
    assert decode(json.dumps(halved).encode()) == halved


def nested(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize("levels", [300, 500, 1_400, 5_000, 9_999, 100_000])
@pytest.mark.parametrize("brackets", [('{"a":', "}"), ("[", "]"), ('{"b":[],"a":[{},', "]}")])
def test_no_depth_ends_it(levels: int, brackets: tuple[str, str]) -> None:
    hostile = nested(levels, *brackets)
    found = decode(f'{{"kept":1,"a":{hostile},"last":"x"}}'.encode())
    assert (found["kept"], found["last"]) == (1, "x")
    assert 0 < depth(found["a"]) < MOST_LEVELS


def test_the_deepest_document_that_is_kept_whole() -> None:
    assert depth(decode(nested(MOST_LEVELS, "[", "]").encode())) == MOST_LEVELS
    assert "1" in str(decode(nested(MOST_LEVELS, "[", "]").encode()))
    assert "None" in str(decode(nested(MOST_LEVELS + 1, "[", "]").encode()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 5_000,
        b"]" * 5_000,
        b'{"a": "',
        b'{"a":1}}',
        b"\xff",
        b'{"a":"\\',
        b"1" * 5_000,
        b'{"a"' * 5_000,
        b"[" * 200 + b"}" * 200 + b"x",
    ],
)
def test_what_is_no_json_is_reported_as_none(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="it is no JSON"):
        decode(data)


def test_too_many_bytes_are_refused_before_anything_is_decoded() -> None:
    whole = b'"' + b"a" * (MOST_BYTES - 2) + b'"'
    assert len(decode(whole)) == MOST_BYTES - 2
    with pytest.raises(UndecodableError, match=f"more than {MOST_BYTES} bytes"):
        decode(whole + b" ")


@pytest.mark.parametrize("part", ["annotations", "ownerReferences", "managedFields"])
def test_the_head_of_an_event_has_the_labels_whatever_follows(part: str) -> None:
    labels = {f"a{number}": "annotations" for number in range(10_000)} | {"job": "one"}
    known = {"name": "x", "resourceVersion": "7", "labels": labels}
    deep = '{"f:a":' * 9_000
    value = f"[{deep}" if part != "annotations" else '{"a":"\\u003c'
    metadata = json.dumps(known)[:-1] + f',"{part}":{value}'
    line = f'{{"type":"MODIFIED","object":{{"kind":"Pod","metadata":{metadata}'
    found = {"type": "MODIFIED", "object": {"kind": "Pod", "metadata": known}}
    assert decode_head(line.encode()) == found


@pytest.mark.parametrize(
    "data", [b"garbage", b"7", b"[7]", b'{"object":7}', b'{"object":{"metadata":{"name":"x"}}}']
)
def test_what_has_no_head_is_none(data: bytes) -> None:
    assert decode_head(data) is None
