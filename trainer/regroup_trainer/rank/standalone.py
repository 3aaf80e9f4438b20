"""A program that no agent has started: by `python` alone, or as one of several ranks by `torchrun`.

It trains, saves, and resumes from what it saved. There is no coordinator: a lost rank ends all of
them, and somebody has to start them again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol.config import CheckpointPolicy, TrainConfig
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.protocol.generation import (
    Assignment,
    Decision,
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
)
from regroup_trainer.protocol.message import loss_text
from regroup_trainer.protocol.rank_messages import CheckpointSaved, Progress, RankReport, Restored
from regroup_trainer.rank.launch import Launch

RUNS_FOLDER = Path("regroup-runs")
_LINE_SECONDS = 1.0
"""Between lines of progress in a terminal."""
_TIMEOUT = timedelta(seconds=60)
_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


def enter(directory: Path | None, policy: CheckpointPolicy) -> tuple[Launch, Store]:
    """This process's place among the ranks that were started together, and the store for their
    process group.
    """
    if "RANK" not in os.environ:
        os.environ.update(_ALONE)
    store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
    given = os.environ.get(DIRECTORY_VARIABLE)  # set by the job, where its launcher is torchrun
    folder = Path(
        given or directory or RUNS_FOLDER / Path(sys.argv[0] or "program").stem
    ).absolute()
    meeting = PrefixStore(f"regroup-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    record = _record(_agree_on_number(meeting, rank, folder), size, folder, policy)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    assignment = Assignment(record=record, rank=rank, local_rank=local_rank, channel="")
    return Launch(assignment, Terminal(record.number, rank)), PrefixStore(
        str(record.number), meeting
    )


def leave(done: bool) -> None:
    """Close the process group at the end of the process. Ranks that have `done` all steps wait for
    each other.

    Destroying a group while peers still use it now and then aborts a process (gloo, torch 2.15).
    """
    if not dist.is_initialized():
        return
    if done:
        with contextlib.suppress(RuntimeError):
            dist.barrier()
    dist.destroy_process_group()


def _agree_on_number(store: Store, rank: int, folder: Path) -> GenerationNumber:
    """A number above every generation that has begun in the folder, the same on all ranks."""
    if rank == 0:
        newest = max(lineage.read(Layout(folder)), default=GenerationNumber(0, 0))
        store.set("number", str(GenerationNumber(newest.term + 1, 1)))
    return GenerationNumber.parse(store.get("number").decode())


def _record(
    number: GenerationNumber, size: int, folder: Path, policy: CheckpointPolicy
) -> GenerationRecord:
    job = folder.name
    return GenerationRecord(
        number=number,
        reason="started without a coordinator",
        restored_from="Checkpoint",
        members=(MemberRecord(member=job, index=0, pod=job, node="", first_rank=0, ranks=size),),
        store="",
        desired=Desired(
            revision=1,
            namespace="local",
            job=job,
            replicas=1,
            min_replicas=1,
            max_replicas=1,
            train=TrainConfig(),
            checkpoint=policy,
            directory=str(folder),
        ),
    )


class Terminal:
    """A channel without an agent: rank 0 prints, and SIGTERM is the decision to stop."""

    lasting = False

    def __init__(self, number: GenerationNumber, rank: int) -> None:
        self._number = number
        self._leads = rank == 0
        self._reported_at = 0.0
        self.asked_to_end = False
        signal.signal(signal.SIGTERM, self._note_signal)

    def send(self, report: RankReport) -> None:
        """Print what a person wants to see; nothing for other reports."""
        line = _line(report) if self._leads else ""
        if line:
            print(line, flush=True)

    def committed(self, step: int, time: float) -> bool:  # noqa: ARG002 - a terminal alone
        """Whether it is time for another line."""
        if 0.0 <= time - self._reported_at < _LINE_SECONDS:
            return False
        self._reported_at = time
        return True

    def poll(self) -> list[Decide]:
        """The decision to stop, once SIGTERM has come."""
        return (
            [Decide(generation=self._number, decision=Decision.STOP)] if self.asked_to_end else []
        )

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Nothing: nobody ends a generation from outside."""

    def is_over(self) -> bool:
        """Always False."""
        return False

    def next_assignment(self) -> Assignment:
        """Raises RuntimeError: no generation follows in this process."""
        raise RuntimeError("no generation follows in a process without an agent")

    def _note_signal(self, _number: int, _frame: object) -> None:
        self.asked_to_end = True


def _line(report: RankReport) -> str:
    match report:
        case Restored(path=str()):
            return f"resumed from step {report.step}: {report.path}"
        case Progress():
            loss = "not finite" if report.loss is None else loss_text(report.loss)
            clock = time.strftime("%H:%M:%S", time.localtime(report.time))
            unit = "samples" if report.counts_samples else "tokens"
            rate = f"{report.tokens_per_second:.0f} {unit}/s"
            return f"{clock} step {report.step}: loss {loss}, {rate}"
        case CheckpointSaved():
            return f"saved step {report.step}: {report.path}"
        case _:
            return ""
