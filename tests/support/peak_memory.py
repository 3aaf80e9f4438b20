"""The peak memory of a rank's tensors during a training step, as torch's allocator counts it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from regroup_trainer.protocol.generation import Assignment
from tests.support.ranks import RecordingChannel

ENTRY = "tests.support.peak_memory:train_and_measure"
STEPS = 3
"""The first step makes the optimizer's state. The later ones peak alike, to a kilobyte."""


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
        _collectives_on_copies() as copies,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        code = run(assignment, channel)
    Path(options["folder"], str(assignment.rank)).write_text(
        str(_peak(profiler.profiler, ends, copies))
    )
    return code


@contextmanager
def _collectives_on_copies() -> Iterator[set[int]]:
    """Let FSDP2's collectives work on copies that are never freed; yields their addresses.

    The profiler does not see what a thread of the process group frees. Without the copies, such a
    thread may hold the last reference to a tensor of the step, more often on a busy machine.
    """
    import torch
    import torch.distributed as dist

    copies: dict[tuple[str, torch.Size, torch.dtype], torch.Tensor] = {}
    addresses: set[int] = set()

    def copy_of(tensor: torch.Tensor, role: str) -> torch.Tensor:
        key = (role, tensor.shape, tensor.dtype)
        if key not in copies:
            copies[key] = torch.empty_like(tensor)
            addresses.add(copies[key].data_ptr())
        return copies[key].copy_(tensor)

    def on_copies(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(output: torch.Tensor, input: torch.Tensor, **options: Any) -> Any:  # noqa: A002
            result = copy_of(output, "output")
            work = collective(result, copy_of(input, "input"), **options)
            if work is not None:
                work.wait()
            output.copy_(result)
            return work

        return call

    with ExitStack() as patches:
        for name in ("all_gather_single", "reduce_scatter_single"):
            patches.enter_context(patch.object(dist, name, on_copies(getattr(dist, name))))
        yield addresses


def _peak(profiler: Any, ends: list[int], copies: set[int]) -> int:
    """The most bytes allocated at a time after the end of step 1, without the copies."""
    sizes: dict[int, int] = {}
    peak = 0
    for moment, pointer, size in sorted(
        _changes(profiler.kineto_results.experimental_event_tree())
    ):
        if size > 0 and pointer not in copies:
            sizes[pointer] = size
        else:
            sizes.pop(pointer, None)
        if ends[0] <= moment <= ends[-1]:
            peak = max(peak, sum(sizes.values()))
    return peak


def _changes(events: list[Any]) -> Iterator[tuple[int, int, int]]:
    """(time, address, bytes; negative when freed), without what gloo allocates in a collective:
    copies that no other backend makes, and that its threads free unseen.
    """
    for event in events:
        if event.name.startswith(("c10d::", "gloo:")):
            continue
        if event.name == "[memory]":
            change = event.extra_fields
            yield event.start_time_ns, change.ptr, change.alloc_size
        yield from _changes(event.children)
