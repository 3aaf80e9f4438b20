"""What `report` takes, and what it sends and when."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from regroup_trainer import report
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.protocol.rank_messages import Busy, RankReport, ScriptStep
from regroup_trainer.rank import launch, script_report
from regroup_trainer.rank.launch import Launch
from tests.support.generations import make_generation


class StubChannel:
    """Records what is sent. A report is due when the test says so."""

    lasting = True

    def __init__(self) -> None:
        self.sent: list[RankReport] = []
        self.steps: list[int] = []
        self.is_due = True

    def send(self, report: RankReport) -> None:
        self.sent.append(report)

    def committed(self, step: int, time: float) -> bool:
        self.steps.append(step)
        return self.is_due

    def poll(self) -> list[Decide]:
        return []

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None: ...

    def is_over(self) -> bool:
        return False

    def next_assignment(self) -> Assignment:
        raise NotImplementedError


class Loss:
    """A loss on a device: reading it is counted."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return self.value


def announce(rank: int = 0) -> StubChannel:
    channel = StubChannel()
    assignment = Assignment(
        record=make_generation(1, 1), rank=rank, local_rank=0, channel="/nowhere"
    )
    launch.announce(Launch(assignment, channel))
    return channel


@pytest.fixture
def channel() -> Iterator[StubChannel]:
    yield announce()
    launch._present.clear()


def steps(channel: StubChannel) -> list[ScriptStep]:
    return [report for report in channel.sent if isinstance(report, ScriptStep)]


def test_a_step_is_sent_with_total_and_loss(channel: StubChannel) -> None:
    report(step=3, total=10, loss=2.5)
    assert [(s.step, s.total, s.loss, s.has_loss) for s in steps(channel)] == [(3, 10, 2.5, True)]


def test_a_loss_is_read_only_when_it_is_sent(channel: StubChannel) -> None:
    losses = [Loss(float(step)) for step in range(4)]
    for step, loss in enumerate(losses):
        channel.is_due = step == 2
        report(step=step, loss=loss)
    assert [loss.reads for loss in losses] == [0, 0, 1, 0]
    assert channel.steps == [0, 1, 2, 3]
    script_report.flush()
    assert [s.loss for s in steps(channel)] == [2.0, 3.0]


def test_only_rank_0_reads_its_loss() -> None:
    channel, loss = announce(rank=1), Loss(1.0)
    report(step=1, loss=loss)
    assert loss.reads == 0
    assert not steps(channel)[0].has_loss
    launch._present.clear()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), 10**400])
def test_a_loss_that_is_not_finite_is_sent_as_such(channel: StubChannel, loss: float) -> None:
    report(step=1, loss=loss)
    assert [(s.loss, s.has_loss) for s in steps(channel)] == [(None, True)]


@pytest.mark.parametrize(
    ("step", "sent"),
    [(-5, 0), (2**80, 2**53 - 1), (np.int64(7), 7), (np.uint8(7), 7), (torch.tensor(7), 7)],
)
def test_any_whole_number_is_a_step(channel: StubChannel, step: int, sent: int) -> None:
    report(step=step, total=step)
    assert [(s.step, s.total) for s in steps(channel)] == [(sent, sent)]


@pytest.mark.parametrize("loss", [np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5]), 0.5])
def test_any_number_is_a_loss(channel: StubChannel, loss: float) -> None:
    report(step=1, loss=loss)
    assert steps(channel)[0].loss == 0.5


@pytest.mark.parametrize("is_rank", [True, False], ids=["as a rank", "elsewhere"])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"step": 1.5}, "step"),
        ({"step": "1"}, "step"),
        ({"step": True}, "step"),
        ({"step": torch.tensor(1.5)}, "step"),
        ({"step": torch.tensor(1, device="meta")}, "step"),
        ({"step": 1, "total": 1.5}, "total"),
        ({"step": 1, "loss": "low"}, "loss"),
        ({"step": 1, "loss": False}, "loss"),
        ({"step": 1, "busy": 3}, "busy"),
        ({"loss": 1.0}, "step"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_argument(
    is_rank: bool, arguments: dict[str, object], name: str
) -> None:
    if is_rank:
        announce()
    with pytest.raises(TypeError, match=rf"^report: {name} "):
        report(**arguments)  # type: ignore[arg-type]
    launch._present.clear()


def test_a_loss_of_several_numbers_is_an_error(channel: StubChannel) -> None:
    with pytest.raises(TypeError, match=r"^report: loss must be one number, got tensor"):
        report(step=1, loss=torch.ones(2))


def test_no_graph_stays_in_memory_with_a_loss(channel: StubChannel) -> None:
    channel.is_due = False
    report(step=1, loss=torch.ones(1, requires_grad=True).sum())
    unsent = script_report._present[0]._unsent
    assert unsent is not None
    assert unsent.loss.grad_fn is None


def test_busy_is_sent_at_once_after_the_newest_step_and_not_again(channel: StubChannel) -> None:
    channel.is_due = False
    report(step=4)
    for _ in range(100):
        report(busy="evaluation of the whole held-out part, with all its images and their labels")
    kinds = [sent.kind for sent in channel.sent]
    assert kinds == ["script_step", "busy"]
    busy = channel.sent[1]
    assert isinstance(busy, Busy)
    assert busy.lasting
    assert busy.doing.startswith("evaluation of")
    report(step=5)  # ends it, however soon
    assert [s.step for s in steps(channel)] == [4, 5]


def test_what_no_message_can_hold_is_escaped(channel: StubChannel) -> None:
    report(busy="evaluation of \udcff")
    busy = channel.sent[0]
    assert isinstance(busy, Busy)
    assert busy.doing == "evaluation of \\udcff"
    assert busy.model_dump_json()


def test_a_signal_handler_may_report_within_a_report(channel: StubChannel) -> None:
    class Interrupted:
        def __float__(self) -> float:
            report(busy="save")  # as a handler does that runs while the step is sent
            return 1.0

    report(step=1, loss=Interrupted())
    assert [sent.kind for sent in channel.sent] == ["script_step", "busy"]


def test_a_step_ends_what_was_busy_and_not_sent_yet(channel: StubChannel) -> None:
    class Interrupted:
        def __float__(self) -> float:
            report(busy="save")
            report(step=2)
            return 1.0

    report(step=1, loss=Interrupted())
    assert [sent.kind for sent in channel.sent] == ["script_step", "script_step"]


def test_beside_a_session_it_does_nothing(channel: StubChannel) -> None:
    here = launch.present()
    assert here is not None
    here.finish = lambda: None
    report(step=1)
    report(busy="evaluation")
    assert channel.sent == []


def test_a_process_that_the_rank_forks_reports_nothing(channel: StubChannel) -> None:
    here = launch.present()
    assert here is not None
    assert here.process == os.getpid()
    here.process += 1
    report(step=1)
    assert channel.sent == []


def test_threads_may_report_at_once_and_nobody_waits(channel: StubChannel) -> None:
    reading, release = threading.Event(), threading.Event()

    class Slow:
        def __float__(self) -> float:
            reading.set()
            assert release.wait(10)
            return 1.0

    thread = threading.Thread(target=lambda: report(step=1, loss=Slow()))
    thread.start()
    assert reading.wait(10)
    report(step=2)
    assert channel.sent == []
    release.set()
    thread.join()
    script_report.flush()
    assert [s.step for s in steps(channel)] == [1, 2]
