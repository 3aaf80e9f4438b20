"""DDP's buckets: all gradients, in few tensors."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from regroup_trainer.parallel.gradient_sum import SummedDDP
from regroup_trainer.protocol.config import ParallelismConfig

MEGABYTE = 2**20
SMALL_BUCKETS = 2 / MEGABYTE


pytestmark = pytest.mark.usefixtures("group_of_one")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def squares(tensors: list[torch.Tensor]) -> float:
    return float(sum(tensor.double().square().sum() for tensor in tensors))


def test_the_buckets_hold_the_gradients_also_when_they_have_been_arranged_anew() -> None:
    model = SummedDDP(
        make_model(), ParallelismConfig(), gradient_as_bucket_view=True, bucket_cap_mb=SMALL_BUCKETS
    )
    for _ in range(3):  # after the first backward pass the buckets are made anew
        model.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        assert squares(model.reduced() or []) == pytest.approx(
            squares(gradients_of(model)), rel=1e-12
        )
    gradients_of(model)[0].fill_(float("nan"))
    assert math.isnan(squares(model.reduced() or [])), "what a program does to a gradient shows"


def test_buckets_that_are_arranged_anew_are_not_there_beside_the_old_ones() -> None:
    model = SummedDDP(make_model(), ParallelismConfig(), gradient_as_bucket_view=True)
    model(torch.ones(3, 4)).sum().backward()
    old = [weakref.ref(bucket) for bucket in model.reduced() or []]
    assert old
    model.zero_grad()
    model(torch.ones(3, 4))
    assert [bucket() for bucket in old] == [None] * len(old)


def test_a_parameter_without_a_gradient_adds_nothing() -> None:
    model = SummedDDP(
        make_model(), ParallelismConfig(), gradient_as_bucket_view=True, find_unused_parameters=True
    )
    model(torch.ones(3, 4)).sum().backward()
    model.zero_grad()
    model.module[2].forward = lambda inputs: inputs[:, :2]
    model(torch.ones(3, 4)).sum().backward()
    used = gradients_of(model)[:4]
    assert squares(model.reduced() or []) == pytest.approx(squares(used), rel=1e-12)


def test_gradients_that_are_not_in_the_buckets_are_not_looked_for_there() -> None:
    model = SummedDDP(make_model(), ParallelismConfig(), gradient_as_bucket_view=False)
    model(torch.ones(3, 4)).sum().backward()
    assert model.reduced() is None


def test_what_is_no_longer_used_goes_away() -> None:
    module = make_model()
    model = SummedDDP(module, ParallelismConfig(), gradient_as_bucket_view=True)
    model(torch.ones(3, 4)).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None, "a second DDP over this module would raise an error"
