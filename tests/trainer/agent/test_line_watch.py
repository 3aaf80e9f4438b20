"""Which of the lines that a rank writes are looked at, and when."""

from __future__ import annotations

from regroup_trainer.agent.line_watch import LineWatch
from regroup_trainer.agent.rank_output import Lines
from regroup_trainer.protocol.progress_pattern import Found, ProgressPattern
from tests.support.least_time import least_cpu_seconds
from tests.support.optional_packages import needs_re2

pytestmark = needs_re2


def make_watch() -> LineWatch:
    return LineWatch(ProgressPattern(r"step (?P<step>\d+)"))


def test_the_newest_step_counts_whatever_follows_it() -> None:
    watch = make_watch()
    for line in (b"step 1", b"step 2", b"learning rate 0.1"):
        watch.on_line(line)
    assert watch.look(1.0) == Found(2, 0, None)
    assert not watch.has_new
    assert watch.look(2.0) is None


def test_lines_in_quick_succession_wait_for_the_next_look() -> None:
    watch = make_watch()
    watch.on_line(b"step 1")
    assert watch.look(1.0) == Found(1, 0, None)
    watch.on_line(b"step 2")
    assert watch.look(1.4) is None
    assert watch.has_new
    assert watch.look(1.6) == Found(2, 0, None)


def test_at_the_end_the_last_lines_are_looked_at_at_once() -> None:
    watch = make_watch()
    watch.on_line(b"step 1")
    watch.look(1.0)
    watch.on_line(b"step 2")
    assert watch.look_now(1.0) == Found(2, 0, None)


def test_every_drawing_of_a_progress_bar_is_a_line() -> None:
    watch = make_watch()
    lines = Lines(lambda: b"", watch.on_line)
    lines.feed(b"\rstep 1\rstep 2\rst", 1.0)
    assert watch.look(1.0) == Found(2, 0, None)
    lines.feed(b"ep 3\n", 2.0)
    assert watch.look(2.0) == Found(3, 0, None)


def test_a_hundred_thousand_lines_a_second_are_no_burden() -> None:
    chunk = b"".join(b"step %d of many, and more of it\n" % step for step in range(1000))

    def read_a_second() -> None:
        watch = make_watch()
        lines = Lines(lambda: b"rank 0: ", watch.on_line)
        for hundredth in range(100):
            lines.feed(chunk, hundredth / 100)
            watch.look(hundredth / 100)

    assert least_cpu_seconds(read_a_second, 1.0) < 1.0
