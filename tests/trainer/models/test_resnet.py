"""The classifier of images."""

from __future__ import annotations

import pytest
import torch

from regroup_trainer.models.loss import loss_sum
from regroup_trainer.protocol.config import ModelConfig
from tests.support.models import built


def test_an_image_is_judged_without_regard_to_the_others_in_its_batch() -> None:
    model = built("resnet", classes=10)
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]))


@pytest.mark.parametrize(("preset", "parameters"), [("20", 272_000), ("56", 855_000)])
def test_presets_have_the_published_parameters(preset: str, parameters: int) -> None:
    count = sum(parameter.numel() for parameter in built("resnet", preset, classes=10).parameters())
    assert count == pytest.approx(parameters, rel=0.01)


def test_the_stages_halve_the_resolution_and_double_the_channels() -> None:
    model = built("resnet", "tiny", classes=10)
    x = torch.zeros(1, 8, 28, 28)
    shapes = []
    for block in model.blocks:
        x = block(x)
        shapes.append(tuple(x.shape))
    assert shapes == [(1, 8, 28, 28), (1, 16, 14, 14), (1, 32, 7, 7)]


def test_it_learns_to_tell_stripes_apart() -> None:
    model = built("resnet", "tiny", classes=2)
    across = torch.arange(8).remainder(2).float().expand(8, 8)
    images = torch.stack([across, across.T])[:, None]
    targets, weights = torch.tensor([0, 1]), torch.ones(2)
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.zeros(())
    for _ in range(20):
        loss = loss_sum(model(images), targets, weights)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.1


def test_layers_that_do_not_fill_the_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="layers 4 must be a multiple of 3"):
        ModelConfig.model_validate({"name": "resnet", "dimensions": {"layers": 4, "width": 8}})
