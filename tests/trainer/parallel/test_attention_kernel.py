"""The choice of the attention's kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel.attention_kernel import choose_attention
from regroup_trainer.protocol.config import TrainConfig
from tests.support.models import built, tokens

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def all_kernels_afterwards() -> Iterator[None]:
    yield
    choose_attention(TrainConfig(), CPU)


def config(name: str, attention: str) -> TrainConfig:
    return TrainConfig.model_validate(
        {"model": {"name": name, "preset": "tiny", "attention": attention}}
    )


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_the_choice_is_returned(name: str) -> None:
    assert choose_attention(config(name, "auto"), CPU) == "flash"
    assert choose_attention(config(name, "math"), CPU) == "math"


def test_a_model_without_attention_has_no_choice() -> None:
    assert choose_attention(config("resnet", "auto"), CPU) == ""


def test_the_choice_is_what_serves() -> None:
    model, text = built(), tokens((1, 16))
    for kernel, operation in [
        ("flash", "scaled_dot_product_flash"),
        ("math", "scaled_dot_product_attention_math"),
    ]:
        choose_attention(config("gpt", kernel), CPU)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(text)
        assert any(operation in event.key for event in profile.key_averages())


def test_a_kernel_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="'cudnn' cannot serve heads of 16 channels in fp32 on cpu"
    ):
        choose_attention(config("gpt", "cudnn"), CPU)
