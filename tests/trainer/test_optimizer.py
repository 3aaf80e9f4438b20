"""The learning-rate schedule and the groups of AdamW."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.config import OptimizerConfig
from regroup_trainer.optimizer import build_optimizer, learning_rate

CONFIG = OptimizerConfig(learning_rate=2.0, min_learning_rate_ratio=0.1, warmup_steps=4)


def test_the_rate_warms_up_to_the_peak_and_ends_at_the_minimum() -> None:
    rates = [learning_rate(step, 20, CONFIG) for step in range(1, 21)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(0.2)
    assert learning_rate(12, 20, CONFIG) == pytest.approx(1.1)  # half-way down the cosine


@given(st.integers(1, 1000), st.integers(1, 500), st.integers(0, 600))
def test_the_rate_stays_between_zero_and_the_peak(step: int, total: int, warmup: int) -> None:
    config = CONFIG.model_copy(update={"warmup_steps": warmup})
    assert 0 < learning_rate(step, total, config) <= 2.0


def test_matrices_decay_and_vectors_do_not() -> None:
    model = torch.nn.Linear(3, 2)
    decaying, constant = build_optimizer(model, CONFIG).param_groups
    assert (decaying["weight_decay"], constant["weight_decay"]) == (0.1, 0.0)
    assert [parameter.ndim for parameter in decaying["params"]] == [2]
    assert [parameter.ndim for parameter in constant["params"]] == [1]
