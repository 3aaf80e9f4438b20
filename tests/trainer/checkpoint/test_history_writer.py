"""The history of a generation is written beside it, whatever the volume does."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regroup_trainer.checkpoint import history_writer, lineage, volume_calls
from regroup_trainer.checkpoint.history import CommittedStep, audit, committed
from regroup_trainer.checkpoint.history_writer import Beginning, History
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.data.order import SampleOrder, digest
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.checkpoints import DATA
from tests.support.disks import fill, mounted
from tests.support.waiting import wait_until

DEADLINE = 30.0
FIRST, SECOND = GenerationNumber(1, 1), GenerationNumber(1, 2)
root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return prepared(tmp_path)


def prepared(folder: Path) -> Layout:
    """A job's directory in which the first generation has begun."""
    layout = Layout(folder)
    layout.lineage.mkdir(parents=True)
    layout.history.mkdir()
    begin(layout, FIRST, None, 0)
    return layout


def begin(
    layout: Layout, number: GenerationNumber, parent: GenerationNumber | None, step: int
) -> None:
    record = LineageRecord(
        generation=number, parent=parent, resumed_from_step=step, resume=ResumePolicy(), data=DATA
    )
    lineage.begin(layout, record)


def step(number: int, generation: GenerationNumber = FIRST) -> CommittedStep:
    size = DATA.global_batch_size
    first = (number - 1) * size
    ids = SampleOrder(DATA.samples, DATA.seed).ids(range(first, first + size))
    return CommittedStep(
        generation=generation,
        step=number,
        world=2,
        epoch=first // DATA.samples,
        first=first,
        count=size,
        hash=digest(ids),
        loss=1.0 / number,
    )


def steps_of(layout: Layout) -> list[int]:
    return [found.step for found in committed(layout.directory)]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[tuple[Layout, Path]]:
    """A job's directory on a file system that is full, and the file that fills it."""
    with mounted(tmp_path / "disk", "1m") as disk:
        layout, hog = prepared(disk / "job"), disk / "hog"
        fill(hog)
        yield layout, hog


@root_only
def test_lines_wait_while_the_volume_is_full_and_are_written_when_there_is_room(
    full_disk: tuple[Layout, Path],
) -> None:
    layout, hog = full_disk
    history = History(layout, FIRST, Beginning(0))
    for number in range(1, 6):
        history.append(step(number))
    with pytest.raises(OSError, match="No space left"):
        history.sync()
    problem = wait_until("the problem", history.problem)
    assert problem.path == str(layout.history_file(FIRST))
    assert problem.error == "No space left on device"
    assert "5 steps of the history wait in memory" in problem.at_risk
    hog.unlink()
    wait_until("the flush", lambda: history.flushed_step == 5)
    assert history.problem() is None
    history.close(DEADLINE)
    assert steps_of(layout) == [1, 2, 3, 4, 5]


class Hanging:
    """An `os.write` that does not return before it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.may_go_on = threading.Event(), threading.Event()
        self._plain = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, descriptor: int, content: bytes) -> int:
        self.reached.set()
        assert self.may_go_on.wait(DEADLINE)
        return self._plain(descriptor, content)


def test_too_many_waiting_lines_leave_one_gap_that_is_recorded(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "LINES_WAITING", 3)
    volume = Hanging(monkeypatch)
    history = History(layout, FIRST, Beginning(0))
    history.append(step(1))
    assert volume.reached.wait(DEADLINE)
    for number in range(2, 9):
        history.append(step(number))
    volume.may_go_on.set()
    history.sync()
    history.close(DEADLINE)
    assert steps_of(layout) == [1, 6, 7, 8]
    assert layout.history_gaps(FIRST).read_text() == '{"first":2,"last":5}\n'
    assert audit(layout.directory) == ["steps 2 to 5 were left out: the volume was away"]


def test_a_volume_that_does_not_answer_is_a_problem_and_holds_nobody_up(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_calls, "SLOW_SECONDS", 0.01)
    volume = Hanging(monkeypatch)
    history = History(layout, FIRST, Beginning(0))
    history.append(step(1))
    problem = wait_until("the problem", history.problem)
    assert problem.error == "the volume does not answer"
    history.close(0.01)
    volume.may_go_on.set()
    wait_until("the line", lambda: steps_of(layout) == [1])


def test_a_generation_repeats_the_lines_that_the_volume_lacks(layout: Layout) -> None:
    former = History(layout, FIRST, Beginning(0))
    former.append(step(1))
    former.sync()
    begin(layout, SECOND, FIRST, 4)
    known = tuple(step(number) for number in range(1, 5))
    history = History(layout, SECOND, Beginning(4, known))
    history.append(step(5, SECOND))
    history.sync()
    history.close(DEADLINE)
    assert steps_of(layout) == [1, 2, 3, 4, 5]
    for number in range(2, 5):  # the former rank 0 lives, and the volume takes its lines after all
        former.append(step(number))
    former.sync()
    former.close(DEADLINE)
    assert steps_of(layout) == [1, 2, 3, 4, 5]
    assert audit(layout.directory) == []


def test_steps_that_nobody_remembers_are_recorded_as_a_gap(layout: Layout) -> None:
    begin(layout, SECOND, FIRST, 6)
    history = History(layout, SECOND, Beginning(6, (step(5), step(6))))
    history.append(step(7, SECOND))
    history.sync()
    history.close(DEADLINE)
    assert audit(layout.directory) == ["steps 1 to 4 were left out: the volume was away"]


def test_a_history_that_is_closed_while_the_volume_refuses_gives_up(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "write", refuse)
    history = History(layout, FIRST, Beginning(0))
    history.append(step(1))
    history.close(DEADLINE)
    with pytest.raises(OSError, match="Read-only file system"):
        history.sync()


def test_the_file_is_closed_in_the_end(layout: Layout) -> None:
    history = History(layout, FIRST, Beginning(0))
    history.append(step(1))
    history.sync()
    assert open_files(layout.history) == 1
    history.close(DEADLINE)
    assert open_files(layout.history) == 0


def open_files(folder: Path) -> int:
    """How many descriptors this process has of files in the folder."""
    targets = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return sum(Path(target).parent == folder.resolve() for target in targets)


def test_lines_that_the_kernel_could_not_flush_are_written_anew(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports the error once, and drops the pages."""
    fsync, errors = os.fsync, [OSError(errno.EIO, "Input/output error")]

    def flush(descriptor: int) -> None:
        if errors and os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, bytes(100), 0)
            raise errors.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    history = History(layout, FIRST, Beginning(0))
    for number in (1, 2, 3):
        history.append(step(number))
    wait_until("the lines to be flushed", lambda: history.flushed_step == 3, seconds=DEADLINE)
    history.append(step(4))
    history.close(DEADLINE)
    assert not errors
    assert steps_of(layout) == [1, 2, 3, 4]
    assert audit(layout.directory) == []


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBADF])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_descriptor_that_stays_stale_is_opened_anew_by_its_path(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """A server that has restarted has lost what was not flushed, half a line among it."""
    monkeypatch.setattr(volume_calls, "_LONGEST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(history_writer, "FLUSH_SECONDS", 0.01)
    path, stale = layout.history_file(FIRST), set[int]()
    plain_call, plain_open = getattr(os, call), os.open

    def reject(descriptor: int, *arguments: bytes) -> object:
        if descriptor in stale:
            raise OSError(code, os.strerror(code))
        return plain_call(descriptor, *arguments)

    def open_(name: Path, *arguments: int) -> int:
        descriptor = plain_open(name, *arguments)
        stale.discard(descriptor)
        return descriptor

    monkeypatch.setattr(os, call, reject)
    monkeypatch.setattr(os, "open", open_)
    history = History(layout, FIRST, Beginning(0))
    history.append(step(1))
    history.sync()
    stale |= descriptors_of(path)
    with path.open("ab") as file:
        file.write(b'{"step":')
    history.append(step(2))
    wait_until("the flush", lambda: history.flushed_step == 2, seconds=DEADLINE)
    history.close(DEADLINE)
    assert steps_of(layout) == [1, 2]
    assert audit(layout.directory) == []


def descriptors_of(path: Path) -> set[int]:
    """Those that this process has of a file."""
    links = Path("/proc/self/fd").iterdir()
    return {int(link.name) for link in links if os.path.realpath(link) == str(path.resolve())}
