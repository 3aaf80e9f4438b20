"""One worker is left, again and again: does it ever hang?

    make bench NAME=survivor [ARGS=--quick]

Two workers train with DDP on the nodes of bench/recovery.py, so it needs root. In each of 200
rounds one of their nodes loses its power, as drawn. The other worker trains on alone, and a third
joins it. Then the next round begins. All rounds are of one job.

`recovered`: the share of rounds in which the survivor made twenty steps within a minute.
`down_seconds`: from the power loss to the first step of the survivor: the least, the median and the
greatest of all rounds. `lost_steps` were made twice.
"""

from __future__ import annotations

import random
import statistics
import time

from bench.harness import Plan, Values, command
from bench.outcome import Fault, after_new_generation
from bench.recovery import ENOUGH, RECOVER_SECONDS, START_SECONDS, conditions, started, wait
from bench.recovery_faults import lose_node
from bench.recovery_regroup import Regroup
from bench.recovery_subject import NotTrainingError

UNITS = {
    "rounds": "count",
    "recovered": "ratio",
    "least_down_seconds": "s",
    "down_seconds": "s",
    "most_down_seconds": "s",
    "lost_steps": "steps",
}
ROUNDS = {"power-loss": 200, "power-loss-quick": 2}
WORKERS = 2
MOST_STEPS = 300
"""A node is lost so many steps after both train again, at most."""


def plan(quick: bool) -> Plan:
    """200 rounds; a quick run has two."""
    case = "power-loss-quick" if quick else "power-loss"
    return Plan("survivor", (case,), ("regroup",), UNITS, 1, lambda _, one: conditions(one))


def measure(case: str, _subject: str) -> Values:
    """All rounds of a case."""
    dice = random.Random(case)
    found: list[Values] = []
    with started(lambda nodes, folder: Regroup(nodes, folder, WORKERS, least=1)) as training:
        for number in range(1, ROUNDS[case] + 1):
            found.append(survive(training, dice))
            print(f"round {number}: {found[-1]}", flush=True)
    return summed_up(found)


def survive(training: Regroup, dice: random.Random) -> Values:
    """One round. Raises NotTrainingError where two do not train again."""
    begun = len(training.steps)
    due = begun + ENOUGH + dice.randrange(MOST_STEPS)
    wait(
        training,
        START_SECONDS,
        lambda: (training.world_size() == WORKERS and len(training.steps) >= due) or None,
    )
    node, pid = training.node_of(dice.randrange(WORKERS))
    fault = Fault(time.time())
    lose_node(training, node, pid)
    try:
        found = wait(
            training,
            RECOVER_SECONDS,
            lambda: after_new_generation(training.steps[begun:], fault, ENOUGH),
        )
    except NotTrainingError:
        found = {"recovered": 0.0}
    training.regain(node)
    return found


def summed_up(found: list[Values]) -> Values:
    """The figures of all rounds."""
    downs = [down for one in found if (down := one.get("down_seconds")) is not None]
    return {
        "rounds": float(len(found)),
        "recovered": statistics.mean(one["recovered"] or 0.0 for one in found),
        "least_down_seconds": min(downs, default=None),
        "down_seconds": statistics.median(downs) if downs else None,
        "most_down_seconds": max(downs, default=None),
        "lost_steps": sum(one.get("lost_steps") or 0.0 for one in found),
    }


main = command(plan, measure)

if __name__ == "__main__":
    main()
