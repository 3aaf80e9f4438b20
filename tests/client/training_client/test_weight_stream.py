"""Streams of weights, whole ones and those that another program made up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from regroup import TrainingClientError
from regroup.training_client.weight_stream import ProgramEnd, Weight, WeightStream, read_weights

WEIGHT = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
EMPTY = {"dtype": "BF16", "shape": [0, 3], "data_offsets": [8, 8]}
HEADER: dict[str, Any] = {"__metadata__": {"format": "pt"}, "a": WEIGHT, "b": EMPTY}
DATA = bytes(range(8))


def content_of(header: object, data: bytes = DATA) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def stream_of(
    content: bytes, *, exit_code: int = 0, stderr: str | None = None, chunk: int = 5
) -> WeightStream:
    """A program that writes this; by default it says the checksum of it."""
    end = f"a warning\nstep 7 blake2b {hashlib.blake2b(content).hexdigest()}\n"
    chunks = (content[begin : begin + chunk] for begin in range(0, len(content), chunk))
    return WeightStream(
        "pod x", chunks, lambda: ProgramEnd(exit_code, end if stderr is None else stderr)
    )


@pytest.mark.parametrize("chunk", [1, 5, 10_000])
def test_each_tensor_comes_with_its_content(chunk: int) -> None:
    stream = stream_of(content_of(HEADER), chunk=chunk)
    read = [(weight, bytes(content)) for weight, content in read_weights(stream, 8)]
    assert read == [(Weight("a", "F32", (2, 1)), DATA), (Weight("b", "BF16", (0, 3)), b"")]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ([], "header is none"),
        ({"a": 7}, "header is none"),
        ({"a": {**WEIGHT, "dtype": "OBJECT"}}, "a has an unknown type"),
        ({"a": {**WEIGHT, "dtype": ["F32"]}}, "header is none"),
        ({"a": {**WEIGHT, "shape": [-2, -1]}}, "a has an impossible shape"),
        ({"a": {**WEIGHT, "shape": [True, 2]}}, "a has an impossible shape"),
        ({"a": {**WEIGHT, "shape": [2] * 99}}, "a has an impossible shape"),
        ({"a": {**WEIGHT, "data_offsets": [0, 9]}}, "a does not follow the tensor before it"),
        ({"a": WEIGHT, "b": WEIGHT}, "b does not follow the tensor before it"),
    ],
)
def test_a_header_that_is_none_is_one_sentence(header: object, why: str) -> None:
    with pytest.raises(TrainingClientError, match=why):
        list(read_weights(stream_of(content_of(header)), 10**6))


def test_a_header_of_any_length_or_depth_does_not_fill_the_memory() -> None:
    with pytest.raises(TrainingClientError, match="its header has 9223372036854775808 bytes"):
        list(read_weights(stream_of((2**63).to_bytes(8, "little")), 10**6))
    deep = b"[" * 100_000
    with pytest.raises(TrainingClientError, match="its header is none"):
        list(read_weights(stream_of(len(deep).to_bytes(8, "little") + deep, chunk=2**16), 10**6))


def test_more_than_the_caller_allows_is_refused_before_it_is_read() -> None:
    huge = {"a": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}}
    read = iter(read_weights(stream_of(content_of(huge)), 2**34))
    with pytest.raises(TrainingClientError, match=r"have 8,796,093,022,208 bytes, and at most"):
        next(read)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (stream_of(content_of(HEADER, DATA[:3])), "it ends too early"),
        (stream_of(b""), "it ends too early"),
        (stream_of(content_of(HEADER, DATA + b"x")), "more follows"),
        (stream_of(content_of(HEADER), stderr="no line of it"), "its checksum differs"),
        (stream_of(content_of(HEADER), stderr=f"step 7 blake2b {'0' * 128}"), "checksum differs"),
        (
            stream_of(b"", exit_code=1, stderr="a warning\nError: --step 9: not in\n /v\n"),
            r"load_state_dict: --step 9: not in /v \(in pod x\)",
        ),
        (stream_of(b"", exit_code=1, stderr="\x1b[2J" + "x" * 9999), r"dict: \\x1b\[2Jx{496} \("),
        (stream_of(content_of(HEADER, b""), exit_code=3, stderr=""), "exit code 3"),
        (stream_of(content_of(HEADER), exit_code=3, stderr="Error: gone"), "gone"),
        (stream_of(content_of(HEADER), exit_code=137, stderr=""), "for a lack of memory"),
    ],
)
def test_a_stream_that_is_not_whole_is_one_sentence(stream: WeightStream, why: str) -> None:
    with pytest.raises(TrainingClientError, match=why):
        list(read_weights(stream, 10**6))


def test_chunks_that_are_empty_are_no_end() -> None:
    def chunks() -> Iterator[bytes]:
        yield b""
        yield content_of(HEADER)
        yield b""

    whole = stream_of(content_of(HEADER))
    stream = WeightStream("pod x", chunks(), whole.end)
    assert [weight.name for weight, _ in read_weights(stream, 8)] == ["a", "b"]
