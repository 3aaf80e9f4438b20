"""Classification of images, trained by ranks as everything else is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.ranks import Template, generation, succeeded, train_config


@pytest.mark.slow
def test_a_resnet_learns_to_read_digits(template: Template, tmp_path: Path) -> None:
    config = train_config(
        model={"name": "resnet", "preset": "tiny"},
        data={"source": "images", "name": "digits", "held_out_percent": 20},
        optimizer={"learning_rate": 1e-2, "warmup_steps": 10},
        training={"steps": 120, "global_batch_size": 64, "micro_batch_size": 32},
        evaluation={"every_steps": 60, "samples": 360},
    )
    outcomes = template.run(generation(tmp_path, 2, config))
    succeeded(outcomes)
    assert outcomes[0].losses[0] == pytest.approx(math.log(10), rel=0.3)
    before, after = outcomes[0].evaluated
    assert after.loss < before.loss
    assert after.accuracy is not None and after.accuracy > 0.95
