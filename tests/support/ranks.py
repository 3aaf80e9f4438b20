"""Generations of real rank processes. A template process that has imported the trainer forks them,
as an agent's does.

`python -m tests.support.ranks` is the template; `Template` is its handle; `RecordingChannel`
replaces the agent.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from regroup_trainer.agent.template import preload
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy, TrainConfig
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import (
    Assignment,
    Decision,
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
)
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Progress,
    RankReport,
    Restored,
    SnapshotsOff,
    SnapshotTaken,
    rank_report,
)

Entry = Callable[[Assignment, dict[str, Any], "RecordingChannel"], int]
"""What a rank does instead of `trainer.run`; named as module:function."""
FIRST = GenerationNumber(1, 1)
_PLAIN = "tests.support.ranks:train"


def train_config(**sections: dict[str, Any]) -> TrainConfig:
    """A tiny model that trains a few quick steps; `sections` are merged over that."""
    tiny: dict[str, dict[str, Any]] = {
        "model": {"preset": "tiny"},
        "data": {},
        "parallelism": {"strategy": "ddp"},
        "optimizer": {"warmup_steps": 2, "learning_rate": 3e-3},
        "training": {
            "steps": 6,
            "global_batch_size": 10,
            "micro_batch_size": 4,
            "sequence_length": 32,
            "seed": 5,
        },
        "evaluation": {},
    }
    return TrainConfig.model_validate(
        {name: {**tiny[name], **sections.get(name, {})} for name in tiny}
    )


def generation(
    directory: Path,
    world_size: int,
    train: TrainConfig,
    *,
    number: GenerationNumber = FIRST,
    checkpoint: dict[str, Any] | None = None,
    resume: dict[str, Any] | None = None,
) -> GenerationRecord:
    """A generation of `world_size` members with one rank each. Its store is made when it starts."""
    return GenerationRecord(
        number=number,
        reason="test",
        restored_from="Nothing",
        members=tuple(
            MemberRecord(
                member=f"m{rank}",
                index=rank,
                pod=f"p{rank}",
                node=f"n{rank}",
                first_rank=rank,
                ranks=1,
            )
            for rank in range(world_size)
        ),
        store="127.0.0.1:0",
        desired=Desired(
            revision=1,
            namespace="default",
            job="test",
            replicas=world_size,
            min_replicas=1,
            max_replicas=world_size,
            train=train,
            checkpoint=CheckpointPolicy.model_validate(checkpoint or {}),
            resume=ResumePolicy.model_validate(resume or {}),
            directory=str(directory),
        ),
    )


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended, and what it reported."""

    exit_code: int
    stderr: str
    reports: list[RankReport]

    def of(self, kind: type[Any]) -> list[Any]:
        """Its reports of one kind."""
        return [report for report in self.reports if isinstance(report, kind)]

    @property
    def restored(self) -> Restored:
        (report,) = self.of(Restored)
        assert isinstance(report, Restored)
        return report

    @property
    def progress(self) -> list[Progress]:
        return self.of(Progress)

    @property
    def losses(self) -> list[float | None]:
        return [report.loss for report in self.progress]

    @property
    def saved(self) -> list[CheckpointSaved]:
        return self.of(CheckpointSaved)

    @property
    def failed(self) -> list[CheckpointFailed]:
        return self.of(CheckpointFailed)

    @property
    def snapshots(self) -> list[SnapshotTaken]:
        return self.of(SnapshotTaken)

    @property
    def snapshots_off(self) -> list[SnapshotsOff]:
        return self.of(SnapshotsOff)

    @property
    def evaluated(self) -> list[Evaluated]:
        return self.of(Evaluated)

    @property
    def finished(self) -> Finished | None:
        return next(iter(self.of(Finished)), None)


def succeeded(outcomes: list[RankOutcome]) -> list[RankOutcome]:
    """The outcomes; fails unless all have exit code 0."""
    assert [outcome.exit_code for outcome in outcomes] == [0] * len(outcomes), [
        outcome.stderr for outcome in outcomes
    ]
    return outcomes


class RecordingChannel:
    """Writes reports to a file. Decisions come from a script {step: decision}, by committed
    steps.
    """

    lasting = False

    def __init__(
        self, path: Path, generation: GenerationNumber, script: dict[int, Decision]
    ) -> None:
        self._file = path.open("a", buffering=1)
        self._generation = generation
        self._script = script
        self.step = 0

    def send(self, report: RankReport) -> None:
        self._file.write(report.model_dump_json() + "\n")
        if isinstance(report, Restored | Progress):
            self.step = report.step

    def committed(self, step: int, time: float) -> bool:
        return True

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        pass

    def is_over(self) -> bool:
        return False

    def next_assignment(self) -> Assignment:
        raise AssertionError("this process takes part in one generation only")

    def poll(self) -> list[Decide]:
        decision = self._script.get(self.step + 1)
        return [] if decision is None else [Decide(generation=self._generation, decision=decision)]


@dataclass
class Template:
    """A process that forks ranks. It takes seconds to start, and tenths of one to start a
    generation.
    """

    scratch: Path
    _process: subprocess.Popen[str] = field(init=False)
    _runs: int = 0

    def __post_init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )

    def run(
        self,
        record: GenerationRecord,
        *,
        entry: str = _PLAIN,
        options: dict[str, Any] | None = None,
        decisions: dict[int, Decision] | None = None,
        snapshots: Sequence[tuple[Path, int]] = (),
    ) -> list[RankOutcome]:
        """Run all ranks of a generation to their end. `entry` gets `options`; rank 0 receives
        `decisions` by step.

        `snapshots` are, for each rank, the folder that it shares with its agent and the free slot
        there.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._runs += 1
        folder = self.scratch / f"run-{self._runs}"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        store = TCPStore(
            "127.0.0.1", 0, None, True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
        record = record.model_copy(update={"store": f"127.0.0.1:{store.port}"})
        assignments = [
            Assignment(record=record, rank=rank, local_rank=0, channel="")
            for rank in range(record.world_size)
        ]
        for rank, (folder_of_rank, slot) in enumerate(snapshots):
            update = {"snapshots": str(folder_of_rank), "free_slot": slot}
            assignments[rank] = assignments[rank].model_copy(update=update)
        request = {
            "folder": str(folder),
            "entry": entry,
            "options": options or {},
            "decisions": decisions or {},
            "assignments": [assignment.model_dump(mode="json") for assignment in assignments],
        }
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        exit_codes = json.loads(self._process.stdout.readline())
        return [_outcome(folder, rank, code) for rank, code in enumerate(exit_codes)]

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)  # a busy machine takes its time to end an interpreter
        self._process.stdout.close()


def _outcome(folder: Path, rank: int, exit_code: int) -> RankOutcome:
    lines = (folder / f"reports-{rank}.jsonl").read_text().splitlines()
    reports = [rank_report.validate_json(line) for line in lines]
    return RankOutcome(exit_code, (folder / f"stderr-{rank}").read_text(), reports)


# --- in the template ------------------------------------------------------------------------------


def train(assignment: Assignment, options: dict[str, Any], channel: RecordingChannel) -> int:
    """Be a rank, which is the default entry. Returns the exit code."""
    from regroup_trainer.rank.rank_process import run

    return run(assignment, channel)


def _be_rank(request: dict[str, Any], rank: int) -> int:
    folder = Path(request["folder"])
    for number, name in (
        (1, "stdout"),
        (2, "stderr"),
    ):  # the template's own are the connection to the test
        with (folder / f"{name}-{rank}").open("w") as file:
            os.dup2(file.fileno(), number)
    assignment = Assignment.model_validate(request["assignments"][rank])
    script = (
        {int(step): Decision(value) for step, value in request["decisions"].items()}
        if rank == 0
        else {}
    )
    channel = RecordingChannel(folder / f"reports-{rank}.jsonl", assignment.record.number, script)
    module, function = request["entry"].split(":")
    entry: Entry = getattr(importlib.import_module(module), function)
    try:
        return entry(assignment, request["options"], channel)
    except BaseException:
        traceback.print_exc()
        return 1


def _fork(request: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_be_rank(request, rank))
    return pid


def main() -> None:
    """Run the generations that standard input asks for, one after the other."""
    preload("regroup_trainer.rank.rank_process")
    gc.collect()
    gc.freeze()  # as an agent's template does: each rank collects garbage, for a quarter second

    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1, (
            "a fork of a process with threads is unsafe"
        )
        request = json.loads(line)
        pids = [_fork(request, rank) for rank in range(len(request["assignments"]))]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        codes = [128 + os.WTERMSIG(s) if os.WIFSIGNALED(s) else os.WEXITSTATUS(s) for s in statuses]
        print(json.dumps(codes), flush=True)
    os._exit(0)  # without the clean-up of an interpreter that has loaded torch


if __name__ == "__main__":
    main()
