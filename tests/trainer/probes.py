"""What ranks tell about themselves in tests: collectives of a step, bytes of optimizer state, threads."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from regroup_trainer.contract import Assignment
from tests.support.ranks import RecordingChannel
from tests.support.waiting import wait_until

Options = dict[str, Any]


def _tell(assignment: Assignment, options: Options, value: object) -> None:
    (Path(options["folder"]) / f"{assignment.rank}.json").write_text(json.dumps(value))


def count_collectives(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write for each step how often it reduced gradients (DDP's hook) and commits, and how many of these came first."""
    from regroup_trainer import gradient_sum, step, trainer

    steps: list[Counter[str]] = []
    plain_hook, plain_run = gradient_sum.sum_gradients, step.Stepper.run

    def hook(group: Any, bucket: Any) -> Any:
        steps[-1]["buckets"] += 1
        return plain_hook(group, bucket)

    class Proposal(step.Proposal):
        def __init__(self, *arguments: Any) -> None:
            steps[-1]["commits"] += 1
            steps[-1]["before_buckets"] += not steps[-1]["buckets"]
            super().__init__(*arguments)

    def run(stepper: Any, batch: Any, *rest: Any) -> Any:
        steps.append(Counter(micro_batches=len(batch.micro_batches)))
        return plain_run(stepper, batch, *rest)

    hook.__annotations__ = plain_hook.__annotations__  # DDP looks at them
    gradient_sum.sum_gradients, step.Proposal = hook, Proposal  # type: ignore[assignment, misc]
    step.Stepper.run = run  # type: ignore[method-assign, assignment]
    code = trainer.run(assignment, channel)
    _tell(assignment, options, steps)
    return code


def measure_optimizer(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write how many bytes of optimizer state the rank holds in the end."""
    import torch

    from regroup_trainer import trainer
    from regroup_trainer.loop import Loop
    from regroup_trainer.step import local

    plain = Loop.run

    def run(loop: Loop) -> Any:
        ending = plain(loop)
        states = loop._state.own_optimizer.state.values()
        tensors = [local(value) for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        _tell(assignment, options, sum(tensor.nbytes for tensor in tensors))
        return ending

    Loop.run = run  # type: ignore[method-assign, assignment]
    return trainer.run(assignment, channel)


def count_threads(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write how many threads of process groups the rank has after each of several jobs, one world after the other."""
    from regroup_trainer import trainer

    record, threads = assignment.record, []
    for number in range(1, options["worlds"] + 1):
        directory = str(Path(options["folder"]) / f"job-{number}")
        desired = record.desired.model_copy(update={"directory": directory})
        update = {"number": record.number._replace(n=number), "desired": desired}
        code = trainer.run(assignment.model_copy(update={"record": record.model_copy(update=update)}), channel)
        assert code == 0
        wait_until("the groups' end", lambda: all(thread.name != "disconnect" for thread in threading.enumerate()))
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        threads.append(sum("gloo" in name for name in names))
    _tell(assignment, options, threads)
    return 0
