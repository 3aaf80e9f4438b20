"""Ranks that print what their models did: what was compiled, whether the loss came in chunks."""

from __future__ import annotations

import sys
from typing import Any

from regroup_trainer.protocol.generation import Assignment
from tests.support.ranks import RecordingChannel, train


def graphs(assignment: Assignment, options: dict[str, Any], channel: RecordingChannel) -> int:
    """Train, and print how many graphs were compiled; a second graph of one function counts too."""
    from torch._dynamo.utils import counters

    code = train(assignment, options, channel)
    print(f"graphs: {counters['stats']['unique_graphs']}", file=sys.stderr)
    return code


def chunks(assignment: Assignment, options: dict[str, Any], channel: RecordingChannel) -> int:
    """Train, and print the number of chunks of each loss."""
    from regroup_trainer.models import decoder, loss

    seen: set[int] = set()
    compute = loss.chunked_loss_sum

    def noting(head: Any, hidden: Any, targets: Any, weights: Any, count: int) -> Any:
        seen.add(count)
        return compute(head, hidden, targets, weights, count)

    decoder.chunked_loss_sum = noting  # type: ignore[attr-defined, assignment]
    code = train(assignment, options, channel)
    print(f"chunks: {seen}", file=sys.stderr)
    return code
