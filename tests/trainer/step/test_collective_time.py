"""What a rank waits for others: it shows in the ranks that are early, not in the slow one."""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.step.collective_time import CollectiveTime
from tests.support.ranks import Template, generation, succeeded, train_config

SLOW_SECONDS = 0.05
STEPS = 8


def test_a_step_that_is_measured_counts_for_those_since_the_last() -> None:
    waits = CollectiveTime()
    waits.add("gradients", 1.0, 1.5)
    waits.add("commit", 2.0, 2.125)
    for _ in range(3):
        waits.end_step()
    waits.add("gradients", 4.0, 5.0)
    assert waits.seconds() == {"gradients": 0.5 + 3 * 1.0, "commit": 0.125}
    assert waits.seconds() == {"gradients": 3.5, "commit": 0.125}


def test_the_rank_that_is_early_waits_for_the_slow_one(template: Template, tmp_path: Path) -> None:
    config = train_config(training={"steps": STEPS, "global_batch_size": 4})
    outcomes = template.run(
        generation(tmp_path, 2, config),
        entry="tests.support.rank_faults:compute_slowly",
        options={"rank": 1, "seconds": SLOW_SECONDS},
    )
    succeeded(outcomes)
    early, slow = (outcome.progress[-1].collective_seconds for outcome in outcomes)
    of_step = config.model.size.layers * SLOW_SECONDS
    assert early["gradients"] > (STEPS - 1) * of_step / 2
    assert slow["gradients"] < early["gradients"] / 2
    assert set(early) == set(slow) == {"gradients", "commit"}
