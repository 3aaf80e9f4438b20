"""Activations computed again: equal gradients, less memory kept, matrix products not repeated when
selective.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regroup_trainer.models import Model
from regroup_trainer.models.loss import loss_sum
from regroup_trainer.parallel.activation_checkpointing import checkpoint_activations
from tests.support.models import built, tokens

MODELS = ["gpt", "llama", "resnet"]


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.convolution.default)
        return function(*arguments, **(options or {}))


def loss(model: Model, name: str) -> torch.Tensor:
    if name == "resnet":
        images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        return loss_sum(model(images), tokens((3,), below=10), torch.ones(3))
    return loss_sum(model(tokens((3, 17))), tokens((3, 17), seed=1), torch.ones(3))


def bytes_kept(model: Model, name: str) -> int:
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model, name)
    return sum(kept.values())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_gradients_are_those_of_the_plain_model(name: str, mode: str) -> None:
    plain, repeated = built(name), built(name)
    checkpoint_activations(repeated, mode)
    for model in (plain, repeated):
        loss(model, name).backward()  # type: ignore[no-untyped-call]
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in repeated.named_parameters()]
    for ours, expected in zip(repeated.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_full_keeps_the_least(name: str) -> None:
    plain, repeated = built(name), built(name)
    checkpoint_activations(repeated, "full")
    assert bytes_kept(repeated, name) < bytes_kept(plain, name) / 2


@pytest.mark.parametrize("name", MODELS)
def test_only_full_repeats_what_is_dear(name: str) -> None:
    products = {}
    for mode in ("none", "selective", "full"):
        model = built(name)
        checkpoint_activations(model, mode)
        with Products() as counter:
            loss(model, name).backward()  # type: ignore[no-untyped-call]
        products[mode] = counter.count
    assert products["none"] == products["selective"] < products["full"]
