"""The learning-rate schedule, the groups of AdamW, Muon beside it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.models import Model
from regroup_trainer.models.loss import loss_sum
from regroup_trainer.protocol.config import OptimizerConfig
from regroup_trainer.step.optimizer import (
    build_optimizer,
    learning_rate,
    set_learning_rate,
    split_for_muon,
)
from tests.support.models import built, tokens

CONFIG = OptimizerConfig(learning_rate=2.0, min_learning_rate_ratio=0.1, warmup_steps=4)
MUON = OptimizerConfig(name="muon", learning_rate=3e-3)


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int) -> float:
    inputs, targets = tokens((2, 9)), tokens((2, 9), seed=1)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = loss_sum(model(inputs), targets, torch.ones(2)) / targets.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


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


def test_muon_takes_the_matrices_of_the_blocks_alone() -> None:
    model = built("llama")
    names = {parameter: name for name, parameter in model.named_parameters()}
    matrices, others = (
        sorted(names[parameter] for parameter in part) for part in split_for_muon(model)
    )
    assert len(matrices) == 2 * 7
    assert [name for name in others if "norm" not in name] == ["embedding.weight"]


def test_muon_learns() -> None:
    model = built()
    optimizer = build_optimizer(model, MUON)
    assert train(model, optimizer, 20) < train(built(), build_optimizer(built(), MUON), 1) - 1


def test_the_rate_reaches_both_parts_of_muon() -> None:
    model = built()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = build_optimizer(model, MUON)
    set_learning_rate(optimizer, 0.0)
    train(model, optimizer, 2)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_muon_continues_a_saved_state_as_if_nothing_had_happened() -> None:
    model = built()
    optimizer = build_optimizer(model, MUON)
    train(model, optimizer, 3)
    other = built()
    other.load_state_dict(model.state_dict())
    resumed = build_optimizer(other, MUON)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(other, resumed, 3) == train(model, optimizer, 3)
