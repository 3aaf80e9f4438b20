"""Ranks that write in tests what they measured: collectives of a step, bytes of optimizer state,
threads.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from regroup_trainer.protocol.generation import Assignment
from tests.support.ranks import RecordingChannel
from tests.support.waiting import wait_until

Options = dict[str, Any]


def _report(assignment: Assignment, options: Options, value: object) -> None:
    (Path(options["folder"]) / f"{assignment.rank}.json").write_text(json.dumps(value))


def count_collectives(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write for each step how often it reduced gradients (DDP's hook) and committed, and how many
    commits came first.
    """
    from regroup_trainer.parallel import gradient_sum
    from regroup_trainer.rank import trainer
    from regroup_trainer.step import stepper
    from regroup_trainer.step.proposal import Proposal

    steps: list[Counter[str]] = []
    plain_hook, plain_run = gradient_sum.sum_gradients, stepper.Stepper.run

    def hook(group: Any, bucket: Any) -> Any:
        steps[-1]["buckets"] += 1
        return plain_hook(group, bucket)

    class CountedProposal(Proposal):
        def __init__(self, *arguments: Any) -> None:
            steps[-1]["commits"] += 1
            steps[-1]["before_buckets"] += not steps[-1]["buckets"]
            super().__init__(*arguments)

    def run(stepper: Any, batch: Any, *rest: Any) -> Any:
        steps.append(Counter(micro_batches=len(batch.micro_batches)))
        return plain_run(stepper, batch, *rest)

    hook.__annotations__ = plain_hook.__annotations__  # DDP inspects them
    gradient_sum.sum_gradients = hook
    stepper.Proposal = CountedProposal  # type: ignore[assignment, attr-defined]
    stepper.Stepper.run = run  # type: ignore[method-assign, assignment]
    code = trainer.run(assignment, channel)
    _report(assignment, options, steps)
    return code


def measure_optimizer(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write how many bytes of optimizer state the rank holds at the end."""
    import torch

    from regroup_trainer.rank import trainer
    from regroup_trainer.rank.loop import Loop
    from regroup_trainer.step.gradients import local

    plain = Loop.run

    def run(loop: Loop) -> Any:
        ending = plain(loop)
        states = loop._state.own_optimizer.state.values()
        tensors = [
            local(value)
            for state in states
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        _report(assignment, options, sum(tensor.nbytes for tensor in tensors))
        return ending

    Loop.run = run  # type: ignore[method-assign, assignment]
    return trainer.run(assignment, channel)


def count_threads(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write how many threads of process groups the rank has after each of several jobs in turn."""
    from regroup_trainer.rank import trainer

    record, threads = assignment.record, []
    for number in range(1, options["generations"] + 1):
        directory = str(Path(options["folder"]) / f"job-{number}")
        desired = record.desired.model_copy(update={"directory": directory})
        update = {"number": record.number._replace(n=number), "desired": desired}
        code = trainer.run(
            assignment.model_copy(update={"record": record.model_copy(update=update)}), channel
        )
        assert code == 0
        wait_until(
            "the groups' end",
            lambda: all(thread.name != "end groups" for thread in threading.enumerate()),
        )
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        threads.append(sum("gloo" in name for name in names))
    _report(assignment, options, threads)
    return 0
