"""The peak memory of a rank's tensors during a training step, as torch's allocator counts it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from regroup_trainer.protocol.generation import Assignment
from tests.support.ranks import RecordingChannel

ENTRY = "tests.support.peak_memory:train_and_measure"
STEPS = 6
"""The first step makes the optimizer's state. How far collectives overlap differs between steps."""


def train_and_measure(
    assignment: Assignment, options: dict[str, Any], channel: RecordingChannel
) -> int:
    """Train, then write the peak of the later steps, in bytes, to `options['folder']`."""
    from torch.profiler import ProfilerActivity, profile

    from regroup_trainer.rank.trainer import run
    from regroup_trainer.step.stepper import Stepper

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
    """The most bytes allocated at a time after the end of step 1.

    What a thread of the process group frees is not recorded. That memory counts until its address
    is used again.
    """
    sizes: dict[int, int] = {}
    peak = 0
    for moment, pointer, size in sorted(
        _changes(profiler.kineto_results.experimental_event_tree())
    ):
        if size > 0:
            sizes[pointer] = size
        else:
            sizes.pop(pointer, None)
        if ends[0] <= moment <= ends[-1]:
            peak = max(peak, sum(sizes.values()))
    return peak


def _changes(events: list[Any]) -> Iterator[tuple[int, int, int]]:
    """(time, address, bytes; negative when freed)."""
    for event in events:
        if event.name == "[memory]":
            change = event.extra_fields
            yield event.start_time_ns, change.ptr, change.alloc_size
        yield from _changes(event.children)
