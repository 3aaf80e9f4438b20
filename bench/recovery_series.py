"""Several faults of one kind in one training, one after the other.

    python -P bench/recovery_series.py CASE SUBJECT FAULTS

Prints a JSON list with the figures of each. `bench/recovery_versions.py` runs it with the modules
of a former version too, so that it uses only what `bench.recovery` had then.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from bench import recovery
from bench.recovery_faults import strike
from bench.recovery_settings import LEAST_WORKERS, SAVE_EVERY, WORKERS
from bench.recovery_subject import Subject


def series(case: str, subject: str, faults: int) -> list[dict[str, Any]]:
    """What each fault did. Raises NotTrainingError where the training does not come to the next."""
    workers = LEAST_WORKERS if case == "join" else WORKERS
    found = []
    with recovery.start(subject, workers) as training:
        for number in range(faults):
            wait_for_fault(training, workers, recovery.steps_after_save(case, number))
            found.append(suffer(training, case))
            if case == "join":
                suffer(training, "shrink")
    return found


def wait_for_fault(training: Subject, workers: int, after_save: int) -> None:
    """Wait until all workers train, and have made so many steps after the next save."""
    wait = partial(recovery.wait, training, recovery.START_SECONDS)
    newest = wait(lambda: recovery.trained(training, workers))
    due = newest - newest % SAVE_EVERY + SAVE_EVERY + after_save
    wait(lambda: recovery.trained(training, workers, due))


def suffer(training: Subject, case: str) -> dict[str, Any]:
    """Inject a fault, and wait for the recovery."""
    fault = strike(training, case)
    found = recovery.wait(
        training, recovery.RECOVER_SECONDS, lambda: recovery.outcome(training, fault, case)
    )
    noticed = None if fault.planned else training.detected(fault.time)
    return {**found, "detect_seconds": noticed and noticed - fault.time}


if __name__ == "__main__":
    print(json.dumps(series(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
