"""Checkpoints that an older version wrote are loaded, and training goes on as that version would.

`written_by_v0_1` holds three jobs' directories (checkpoints, lineage, history) as two ranks of
v0.1.0 (commit 97cee42) left them after step 2 of 4. That of `session` ran a custom loop, which was
tests/trainer/own_program.py of that commit: its checkpoint holds the states of torch's scheduler
and of a counter as plain values.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from regroup_trainer.checkpoint.history import audit
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.ranks import Template, generation, succeeded, train_config

WRITTEN = Path(__file__).parent / "written_by_v0_1"
PROGRAM = Path(__file__).parents[2] / "support" / "own_program.py"
LOSSES = {
    "ddp": [2.79250967502594, 2.7795640230178833],
    "fsdp": [2.79250967502594, 2.7795639038085938],
    "session": [0.553884744644165, 0.630828857421875],
}
"""Of steps 3 and 4 with v0.1.0, which trained all four in one run."""
SCHEDULED_RATES = [0.009045084971874737, 0.007938926261462366]
"""Of these steps of `session`."""


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(WRITTEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_checkpoint_of_v0_1_is_resumed_as_if_nothing_had_changed(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    unpack(strategy, tmp_path)
    train = train_config(
        model={"preset": None, "dimensions": {"layers": 1, "heads": 1, "width": 8}},
        data={"source": "synthetic", "classes": 16, "samples": 64},
        parallelism={"strategy": strategy},
        training={
            "steps": 4,
            "global_batch_size": 4,
            "micro_batch_size": 2,
            "sequence_length": 8,
        },
    )
    outcomes = template.run(generation(tmp_path, 2, train, number=GenerationNumber(1, 2)))
    succeeded(outcomes)
    assert outcomes[0].restored.step == 2
    assert outcomes[0].losses == pytest.approx(LOSSES[strategy], rel=1e-6)
    assert audit(tmp_path) == []


def test_a_session_of_v0_1_resumes_with_the_states_of_its_scheduler_and_its_own_object(
    template: Template, tmp_path: Path
) -> None:
    unpack("session", tmp_path)
    counts = tmp_path / "counts"
    made = generation(tmp_path, 2, train_config(), number=GenerationNumber(1, 2))
    script = (str(PROGRAM), "--steps=4", f"--count-file={counts}")
    desired = made.desired.model_copy(update={"script": script})
    rank0 = succeeded(template.run(made.model_copy(update={"desired": desired})))[0]
    assert rank0.restored.step == 2
    assert rank0.losses == pytest.approx(LOSSES["session"], rel=1e-6)
    assert [step.learning_rate for step in rank0.progress] == pytest.approx(SCHEDULED_RATES)
    assert json.loads(counts.read_text()) == 4, "two of them before"
    assert audit(tmp_path) == []
