"""Generations of real ranks, one after another, each of which resumes from the checkpoint of the
one before.

`python -m bench.elastic_ranks FOLDER` takes a request on standard input, imports the trainer once
and forks ranks.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from regroup_trainer.agent.template import preload
from regroup_trainer.protocol.config import CheckpointPolicy, TrainConfig
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import (
    Assignment,
    Decision,
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
)
from regroup_trainer.protocol.rank_messages import Progress, RankReport

_RUN_FILE = "run.jsonl"


@dataclass(frozen=True)
class Request:
    """What to train."""

    subject: str
    world_sizes: tuple[int, ...]
    """World size of each generation."""
    steps: int
    """Steps of each generation."""
    exact: bool
    quick: bool

    def config(self) -> TrainConfig:
        """The same for all subjects."""
        return TrainConfig.model_validate(
            {
                "model": {"preset": "tiny" if self.quick else "1m"},
                "training": {
                    "steps": self.steps * len(self.world_sizes),
                    "globalBatchSize": 22,
                    "microBatchSize": 2,
                    "sequenceLength": 32 if self.quick else 64,
                    "deterministic": "exact" if self.exact else "rounding",
                },
            }
        )


@dataclass(frozen=True)
class ElasticRun:
    """The losses and step times of rank 0 over all generations."""

    losses: list[float]
    seconds: list[float]
    """Time between the ends of consecutive steps within a generation."""

    @classmethod
    def read(cls, folder: Path) -> ElasticRun:
        """The run that was recorded in `folder`."""
        generations = [json.loads(line) for line in (folder / _RUN_FILE).read_text().splitlines()]
        losses = [loss for generation in generations for loss, _ in generation]
        times = [[time for _, time in generation] for generation in generations]
        seconds = [b - a for ends in times for a, b in pairwise(ends)]
        return cls(losses, seconds)


class Recorder:
    """A rank's channel: keeps the losses, and ends the generation after `last` steps of the run."""

    def __init__(self, generation: GenerationNumber, last: int) -> None:
        self._generation = generation
        self.last = last
        self._step = 0
        self.steps: list[tuple[float, float]] = []
        """(loss, wall clock) of each step."""

    def send(self, report: RankReport) -> None:
        """Record the loss of a progress report."""
        if isinstance(report, Progress) and report.loss is not None:
            self.steps.append((report.loss, report.time))

    def committed(self, step: int, time: float) -> bool:  # noqa: ARG002 - the channel's signature
        """Record the step; True asks for a report of every step."""
        self._step = step
        return True

    lasting = False

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Never calls `act`: no agent ends a generation here."""

    def is_over(self) -> bool:
        """Always False."""
        return False

    def next_assignment(self) -> Assignment:
        """Each generation has processes of its own here."""
        raise RuntimeError("this process runs a single generation")

    def poll(self) -> list[Decide]:
        """Leave after the last step."""
        if self._step + 1 != self.last:
            return []
        return [Decide(generation=self._generation, decision=Decision.LEAVE)]


def assignment(request: Request, folder: Path, number: int, port: int, rank: int) -> Assignment:
    """The place of `rank` in generation 1, 2, ..."""
    size = request.world_sizes[number - 1]
    record = GenerationRecord(
        number=GenerationNumber(1, number),
        reason="bench",
        restored_from="Nothing",
        members=tuple(
            MemberRecord(
                member=f"m{index}",
                index=index,
                pod=f"p{index}",
                node="n",
                first_rank=index,
                ranks=1,
            )
            for index in range(size)
        ),
        store=f"127.0.0.1:{port}",
        desired=Desired(
            revision=1,
            namespace="bench",
            job="bench",
            replicas=size,
            min_replicas=1,
            max_replicas=size,
            train=request.config(),
            checkpoint=CheckpointPolicy(interval_seconds=3600),
            directory=str(folder / "job"),
        ),
    )
    return Assignment(record=record, rank=rank, local_rank=0, channel="")


def be_rank(request: Request, folder: Path, number: int, port: int, rank: int) -> None:
    """Train a generation; rank 0 records it."""
    place = assignment(request, folder, number, port, rank)
    recorder = Recorder(place.record.number, request.steps * number)
    if request.subject == "naive-mean":
        from bench import elastic_naive

        elastic_naive.run(place, recorder)
    else:
        from regroup_trainer.rank import trainer

        trainer.run(place, recorder)
    if rank == 0:
        with (folder / _RUN_FILE).open("a") as file:
            file.write(json.dumps(recorder.steps) + "\n")


def serve_store(port_to: int, until: int, release: int) -> None:
    """Be a generation's store. In a process of its own, since it has threads and ranks are
    forked.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    os.close(release)
    store = TCPStore(
        "127.0.0.1", 0, None, True, timeout=timedelta(seconds=60), wait_for_workers=False
    )
    os.write(port_to, str(store.port).encode())
    os.read(until, 1)  # ends when the parent closes its end


def in_child(action: Callable[..., None], *arguments: object) -> int:
    """Fork a process that does something and ends; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        action(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)


def run_generation(request: Request, folder: Path, number: int) -> bool:
    """Whether all ranks ended well."""
    port_from, port_to = os.pipe()
    until, release = os.pipe()
    os.set_inheritable(release, False)
    store = in_child(serve_store, port_to, until, release)
    port = int(os.read(port_from, 8))
    size = request.world_sizes[number - 1]
    ranks = [
        in_child(_rank_of, release, request, folder, number, port, rank) for rank in range(size)
    ]
    ended = [os.waitpid(pid, 0)[1] for pid in ranks]
    for descriptor in (release, until, port_from, port_to):
        os.close(descriptor)
    os.waitpid(store, 0)
    return not any(ended)


def _rank_of(
    release: int, request: Request, folder: Path, number: int, port: int, rank: int
) -> None:
    os.close(release)  # the store runs while any process holds this descriptor open
    be_rank(request, folder, number, port, rank)


def main(folder: Path) -> int:
    """Run the generations of the request on standard input."""
    preload("regroup_trainer.rank.rank_process")

    request = Request(**json.loads(sys.stdin.read()))
    (folder / "job").mkdir()
    return (
        0
        if all(
            run_generation(request, folder, number + 1)
            for number in range(len(request.world_sizes))
        )
        else 1
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
