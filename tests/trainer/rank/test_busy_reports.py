"""A rank that loads or compiles before a first step reports it, and one that waits does not."""

from __future__ import annotations

import threading
from typing import cast

import pytest
import torch

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment, RestoredFrom
from regroup_trainer.protocol.rank_messages import Busy
from regroup_trainer.rank import busy_reports
from regroup_trainer.rank.busy_reports import BusyReports, report_compilation
from tests.support.generations import make_generation
from tests.support.volume import NotedReports
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_reports, "BUSY_SECONDS", 0.01)


def make_assignment(restored_from: RestoredFrom = "Peers", n: int = 2) -> Assignment:
    record = make_generation(1, n).model_copy(update={"restored_from": restored_from})
    return Assignment(record=record, rank=1, local_rank=0, channel="")


def make_reports(channel: NotedReports, restored_from: RestoredFrom = "Peers") -> BusyReports:
    return BusyReports(make_assignment(restored_from), cast(Channel, channel))


def doings(channel: NotedReports) -> set[str]:
    return {report.doing for report in channel.reports if isinstance(report, Busy)}


def test_what_takes_long_is_reported_again_and_again_until_its_end() -> None:
    channel = NotedReports()
    with make_reports(channel).during("building the model"):
        wait_until("two reports", lambda: len(channel.reports) >= 2)
    report = channel.reports[0]
    assert isinstance(report, Busy)
    assert (report.rank, report.doing, report.lasting) == (1, "building the model", False)
    wait_for_silence()


def test_a_rank_is_not_believed_for_ever() -> None:
    channel = NotedReports()
    make_reports(channel).begin("starting the program", 0.0)
    wait_for_silence()
    assert not channel.reports


def wait_for_silence() -> None:
    """Until no thread reports any more."""
    wait_until("silence", lambda: "busy" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize(("restored_from", "lasting"), [("Checkpoint", True), ("Peers", False)])
def test_nothing_is_reported_where_ranks_have_time_anyway(
    restored_from: RestoredFrom, lasting: bool
) -> None:
    reports = make_reports(NotedReports(lasting=lasting), restored_from)
    assert not reports.are_due


def test_pieces_of_a_state_are_reported_now_and_then() -> None:
    channel = NotedReports()
    reports = make_reports(channel)

    def is_reported() -> bool:
        reports.note_transfer()
        return doings(channel) == {"moving the state"}

    wait_until("a report", is_reported)


def test_a_compilation_is_reported_in_the_newest_generation() -> None:
    """Also that of a user's program, which torch begins at the first call."""
    former, channel = NotedReports(), NotedReports()
    report_compilation(make_assignment(n=2), cast(Channel, former))
    report_compilation(make_assignment(n=3), cast(Channel, channel))

    def compile_slowly(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        wait_until("a report", lambda: channel.reports)
        return graph

    compiled = torch.compile(lambda x: x + 1, backend=compile_slowly)
    assert compiled(torch.zeros(1)) == 1
    assert doings(channel) == {"compiling"}
    assert not former.reports
    wait_for_silence()
