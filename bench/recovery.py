"""How long a training stands still when a process of it is killed: regroup and stock torchrun, side by side.

    make bench NAME=recovery [ARGS=--quick]

Three workers on this machine train the same small model and save every 20 steps; 10 steps after a save one part is
killed (SIGKILL): the process of rank 0, the whole worker of rank 0, or what holds the rendezvous (our coordinator;
torchrun's agent that hosts the store). A dead worker is started again after a second, as Kubernetes would. `recovered`
is 1 where training went on within a minute, else 0. `torchrun` has its default settings, `torchrun-tuned`
the best that we found. The silent loss of a node is measured by the demo.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import recovery_regroup, recovery_torchrun
from bench.harness import Plan, Values, command
from bench.outcome import UNITS

CASES = ("rank-kill", "pod-kill", "coordinator-kill")
MEASURES = {
    "regroup": recovery_regroup.measure,
    "torchrun": recovery_torchrun.stock,
    "torchrun-tuned": recovery_torchrun.tuned,
}


def plan(quick: bool) -> Plan:
    """All cases five times; a quick run kills a rank once, without the subject that may not recover at all."""
    if quick:
        return Plan("recovery", CASES[:1], ("regroup", "torchrun-tuned"), UNITS, 1)
    return Plan("recovery", CASES, tuple(MEASURES), UNITS, 5)


def measure(case: str, subject: str) -> Values:
    """One kill."""
    # What a killed process had started dies a moment after it, and may still write.
    with tempfile.TemporaryDirectory(prefix="regroup-bench-", ignore_cleanup_errors=True) as folder:
        return MEASURES[subject](case, Path(folder))


main = command(plan, measure)

if __name__ == "__main__":
    main()
