"""What a rank's tensors take at most during a training step, as torch's own allocator counts it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from regroup_trainer.contract import Assignment
from tests.support.ranks import RecordingChannel

ENTRY = "tests.support.peak_memory:train_and_measure"
STEPS = 3
"""The optimizer's state is made in the first one; the second one is measured."""


def train_and_measure(assignment: Assignment, options: dict[str, Any], channel: RecordingChannel) -> int:
    """An entry of the ranks' template: train, then write the peak of step 2 in bytes to `options['folder']`."""
    from torch.profiler import ProfilerActivity, profile

    from regroup_trainer.step import Stepper
    from regroup_trainer.trainer import run

    ends: list[int] = []
    step = Stepper.run

    def timed(*arguments: Any) -> Any:
        result = step(*arguments)
        ends.append(time.time_ns())
        return result

    with (
        patch.object(Stepper, "run", timed),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        code = run(assignment, channel)
    Path(options["folder"], str(assignment.rank)).write_text(str(_peak(profiler.profiler, ends)))
    return code


def _peak(profiler: Any, ends: list[int]) -> int:
    """Most bytes allocated at a time between the ends of step 1 and step 2."""
    changes = [
        (event.start_ns(), event.nbytes()) for event in profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    held = peak = 0
    for moment, change in sorted(changes):
        held += change
        if ends[0] <= moment <= ends[1]:
            peak = max(peak, held)
    return peak
