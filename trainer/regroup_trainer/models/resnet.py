"""A small ResNet for grey images (He et al., 2016, section 4.2), with GroupNorm instead of
BatchNorm.

Batch statistics would depend on how a batch is divided, and so on the world size. GroupNorm (Wu &
He, 2018) looks at one image at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer.models.model import Model
from regroup_trainer.protocol.config import ModelConfig

STAGES = 3
_GROUPS = 8


def _convolution(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels)


class ResidualBlock(nn.Module):
    """Two convolutions beside a residual connection, which is a 1 x 1 convolution where the shape
    changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution_in = _convolution(inputs, outputs, stride)
        self.norm_in = _norm(outputs)
        self.convolution_out = _convolution(outputs, outputs, 1)
        self.norm_out = _norm(outputs)
        self.shortcut = (
            _convolution(inputs, outputs, stride, kernel=1)
            if (inputs, stride) != (outputs, 1)
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', H', W']."""
        inner = F.relu(self.norm_in(self.convolution_in(x)))
        kept = x if self.shortcut is None else self.shortcut(x)
        return F.relu(kept + self.norm_out(self.convolution_out(inner)))


class ResNet(Model):
    """Three stages of residual blocks; each halves the resolution of the last and doubles its
    channels.
    """

    def __init__(self, config: ModelConfig, classes: int) -> None:
        super().__init__()
        self.size = config.size
        self.classes = classes
        width = self.size.width
        self.entrance = _convolution(1, width, 1)
        self.entrance_norm = _norm(width)
        self.blocks = nn.ModuleList(self._block(number) for number in range(self.size.layers))
        self.output = nn.Linear(width << (STAGES - 1), classes)

    def _block(self, number: int) -> ResidualBlock:
        per_stage = self.size.layers // STAGES
        stage, place = divmod(number, per_stage)
        outputs = self.size.width << stage
        enters = place == 0 and stage > 0
        return ResidualBlock(
            outputs // 2 if enters else outputs, outputs, stride=2 if enters else 1
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, 1, H, W] -> logits [B, classes]."""
        x = F.relu(self.entrance_norm(self.entrance(images)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.output(x.mean(dim=(2, 3)))
        return logits

    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """He et al., 2015, for convolutions; blocks start as the identity (Goyal et al., 2017)."""
        if name.endswith(("norm_out.weight", "bias")):
            return torch.zeros(shape)
        if len(shape) == 1:
            return torch.ones(shape)
        fan_in = shape[1:].numel()
        gain = 2.0 if len(shape) == 4 else 1.0
        return torch.empty(shape).normal_(0.0, (gain / fan_in) ** 0.5, generator=generator)
