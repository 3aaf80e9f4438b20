"""Stacks of many ranks, folded."""

from __future__ import annotations

from regroup.diagnosis.rank_stacks import (
    MissingStacks,
    StackReport,
    WorkerAnswer,
    fold,
    name_ranks,
    stack_lines,
)
from regroup_trainer.protocol.agent_messages import RankStack

LONG = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
REDUCES = f"""\
Thread 0x00007f0a (most recent call first):
  File "/usr/lib/python3/threading.py", line 331 in wait

Current thread 0x00007f0b (most recent call first):
  File "{LONG}", line 2810 in all_reduce
  File "train.py", line 40 in main
"""
LOADS = """\
Thread 0x00007fff (most recent call first):
  File "data.py", line 7 in read
  File "train.py", line 30 in main
"""


def reduces(rank: int) -> RankStack:
    return RankStack(rank=rank, text=REDUCES.replace("7f0", f"7e{rank}"))


def report(*answers: WorkerAnswer, all_threads: bool = False) -> StackReport:
    return fold("gpt", answers, all_threads=all_threads)


def test_equal_stacks_are_shown_once_and_the_rarest_first() -> None:
    found = report(
        WorkerAnswer("gpt-w0-1", (reduces(0), reduces(1))),
        WorkerAnswer("gpt-w1-1", (RankStack(rank=2, text=LOADS), reduces(3))),
    )
    assert stack_lines(found, 80) == [
        "gpt: 4 ranks answered, 2 different stacks",
        "",
        "rank 2:",
        "  read (data.py:7)",
        "  main (train.py:30)",
        "",
        "ranks 0-1, 3:",
        "  all_reduce (...thon3/site-packages/torch/distributed/distributed_c10d.py:2810)",
        "  main (train.py:40)",
    ]


def test_threads_beside_the_main_one_are_shown_on_request() -> None:
    other = REDUCES.replace("line 331 in wait", "line 99 in run")
    answer = WorkerAnswer("gpt-w0-1", (reduces(0), RankStack(rank=1, text=other)))
    assert len(report(answer).groups) == 1
    both = report(answer, all_threads=True)
    assert [group.ranks for group in both.groups] == [(0,), (1,)]
    assert stack_lines(both, 80)[-2:] == ["  thread 2:", "  run (/usr/lib/python3/threading.py:99)"]


def test_what_shows_no_stack_is_named_first() -> None:
    stopped = [RankStack(rank=rank, missing="is stopped (by SIGSTOP)") for rank in (4, 5)]
    found = report(
        WorkerAnswer("gpt-w0-1", (reduces(0), *stopped)),
        WorkerAnswer("gpt-w1-1", missing="is Pending"),
        WorkerAnswer("gpt-w2-1"),
        WorkerAnswer("gpt-w3-1", (RankStack(rank=6, text="no stack at all\x1b[2J"),)),
    )
    assert found.missing == (
        MissingStacks("pod gpt-w1-1", "is Pending"),
        MissingStacks("pod gpt-w2-1", "has no running rank: it starts, has ended, or is a spare"),
        MissingStacks("ranks 4-5", "is stopped (by SIGSTOP)"),
        MissingStacks("rank 6", "shows no stack"),
    )
    lines = stack_lines(found, 80)
    assert lines[:3] == [
        "gpt: 1 rank answered, all with the same stack", "", "pod gpt-w1-1 is Pending",
    ]  # fmt: skip


def test_a_thread_without_python_frames_and_a_hostile_frame_are_shown_as_text() -> None:
    text = "Thread 0x1 [name] (most recent call first):\n  <no Python frame>\n  File \x1b[2J\n"
    found = report(WorkerAnswer("gpt-w0-1", (RankStack(rank=0, text=text),)))
    assert found.groups[0].threads[0][0] == "<no Python frame>"
    assert "\x1b" not in str(stack_lines(found, 80))


def test_ranks_are_named_in_runs() -> None:
    assert name_ranks([5]) == "rank 5"
    assert name_ranks([3, 1, 2, 7, 7]) == "ranks 1-3, 7"
