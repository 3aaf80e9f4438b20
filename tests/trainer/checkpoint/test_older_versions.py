"""Checkpoints that an older version wrote are loaded, and training goes on as that version would.

`written_by_v0_1` holds two jobs' directories (checkpoints, lineage, history) as two ranks of
v0.1.0 (commit 97cee42) left them after step 2 of 4.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from regroup_trainer.checkpoint.history import audit
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.ranks import Template, generation, succeeded, train_config

WRITTEN = Path(__file__).parent / "written_by_v0_1"
LOSSES = {
    "ddp": [2.79250967502594, 2.7795640230178833],
    "fsdp": [2.79250967502594, 2.7795639038085938],
}
"""Of steps 3 and 4 with v0.1.0, which trained all four in one run."""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_checkpoint_of_v0_1_is_resumed_as_if_nothing_had_changed(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    with tarfile.open(WRITTEN / f"{strategy}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
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
