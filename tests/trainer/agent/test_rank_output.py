"""What ranks write, line by line, with the rank in front."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.agent.rank_output import IDLE_SECONDS, TAIL_BYTES, Lines, Stream


def make_lines() -> Lines:
    return Lines(lambda: b"rank 3: ")


def test_every_line_is_marked_and_the_beginning_of_one_waits_for_its_end() -> None:
    lines = make_lines()
    assert lines.feed(b"a b\nc", 1.0) == b"rank 3: a b\n"
    assert lines.has_begun
    assert lines.feed(b"d\n\n", 1.0) == b"rank 3: cd\nrank 3: \n"
    assert not lines.has_begun


def test_of_a_progress_bar_one_drawing_a_second_and_the_last_one_are_passed_on() -> None:
    seen: list[bytes] = []
    lines = make_lines()
    lines.on_line = seen.append
    out = [lines.feed(b"\r%d %%" % number, number / 10) for number in range(10, 31)]
    assert b"".join(out) == b"rank 3: 10 %\nrank 3: 20 %\n"
    assert lines.feed(b"\rdone\n", 3.1) == b"rank 3: done\n"
    assert seen == [*(b"%d %%" % number for number in range(10, 31)), b"done"]


@pytest.mark.parametrize("chunks", [(b"a\r\nb\r\n",), (b"a\r", b"\nb", b"\r", b"\n")])
def test_a_return_before_the_end_of_a_line_draws_nothing_anew(chunks: tuple[bytes, ...]) -> None:
    lines = make_lines()
    assert b"".join(lines.feed(chunk, 1.0) for chunk in chunks) == b"rank 3: a\nrank 3: b\n"


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_chunks_do_not_matter_and_nothing_is_lost_without_returns(chunks: list[bytes]) -> None:
    chunks = [chunk.replace(b"\r", b"") for chunk in chunks]
    lines = make_lines()
    out = b"".join(lines.feed(chunk, 1.0) for chunk in chunks) + lines.flush()
    written = b"".join(chunks)
    marked = [b"rank 3: " + line + b"\n" for line in written.split(b"\n")]
    assert out == b"".join(marked if not written.endswith(b"\n") and written else marked[:-1])


def test_a_line_without_end_is_passed_on_in_pieces_and_takes_no_memory() -> None:
    lines, out = make_lines(), b""
    for _ in range(1000):
        out += lines.feed(b"x" * 1000, 1.0)
        assert len(lines.flush()) < 1 << 16
    assert out.count(b"x") <= 1_000_000


def test_a_stream_passes_on_what_comes_and_keeps_its_end() -> None:
    (source, end), (shown, target) = os.pipe(), os.pipe()
    os.set_blocking(source, False)
    stream = Stream(source, target, make_lines())
    assert stream.pump(1.0)  # nothing yet
    os.write(end, b"a\nb")
    assert stream.pump(1.0)
    stream.pass_on_beginning(1.0)
    assert os.read(shown, 100) == b"rank 3: a\n"
    stream.pass_on_beginning(1.0 + IDLE_SECONDS)
    assert os.read(shown, 100) == b"rank 3: b\n"
    for _ in range(20):
        os.write(end, b"c" * 5000 + b"\nlast\n")
        assert stream.pump(3.0)
        assert os.read(shown, 6000).endswith(b"c\nrank 3: last\n")
    os.write(end, b"end")
    stream.drain(3.0)
    assert stream.tail == ((b"c" * 5000 + b"\nlast\n") * 20 + b"end")[-TAIL_BYTES:]
    os.close(end)
    assert not stream.pump(4.0)
    stream.close()
    stream.drain(5.0)  # it is closed: nothing happens


def test_what_cannot_be_written_is_lost_and_nothing_else_happens() -> None:
    (source, end), (shown, target) = os.pipe(), os.pipe()
    os.close(shown)
    stream = Stream(source, target, make_lines())
    os.write(end, b"a\n")
    assert stream.pump(1.0)
