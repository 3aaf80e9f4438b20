"""What decoder-only transformers share: embedding, blocks with rotary positions, final norm, output
head, loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer.models.loss import chunked_loss_sum
from regroup_trainer.models.model import Model
from regroup_trainer.models.rotary import rotary_angles
from regroup_trainer.protocol.config import ModelConfig

_INITIAL_DEVIATION = 0.02


class TiedHead(nn.Module):
    """The output layer: the embedding's weights again (Press & Wolf, 2017)."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """[..., C], [V, C] -> logits [..., V]."""
        return F.linear(x, weight)


class Decoder(Model):
    """Predicts the next token. Subclasses give the blocks and the norms."""

    def __init__(self, config: ModelConfig, classes: int, *, tied: bool) -> None:
        super().__init__()
        self.size = config.size
        self.classes = classes
        self.loss_chunks = config.loss_chunks
        self.embedding = nn.Embedding(classes, self.size.width)
        self.blocks = nn.ModuleList(self.block() for _ in range(self.size.layers))
        self.final_norm = self.norm()
        self.head = TiedHead() if tied else nn.Linear(self.size.width, classes, bias=False)
        self.starts = self.ends = True
        """Whether embedding and head are here. A part in the middle of a pipeline takes and returns
        the residual stream instead.
        """
        self.input_slices = 1
        """The number of tensor-parallel ranks over which the residual stream is sliced when it
        enters a part of a pipeline.
        """
        self.context_rank = 0
        """Which of the slices of each sequence, of equal length, is here."""

    def block(self) -> nn.Module:
        """A block: ([B, T, C], cosine, sine) -> [B, T, C]."""
        raise NotImplementedError

    def norm(self) -> nn.Module:
        """The final norm: [B, T, C] -> [B, T, C]."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Tokens [B, T] -> logits [B, T, V]; with targets [B, T] and weights [B], the sum of
        losses, computed in chunks.
        """
        x = self.embedding(tokens) if self.starts else tokens
        cosine, sine = self.angles(tokens.shape[1] * self.input_slices, tokens.device)
        for block in self.blocks:
            x = block(x, cosine, sine)
        if not self.ends:
            return x
        x = self.final_norm(x)
        if targets is None or weights is None:
            return self.logits(x)
        return chunked_loss_sum(self.logits, x, targets, weights, self.loss_chunks)

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        logits: Tensor = self.head(x, self.embedding.weight) if self.tied else self.head(x)
        return logits

    def angles(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the positions. They are no buffer, since they need no place in
        checkpoints.
        """
        end = (self.context_rank + 1) * length
        cosine, sine = rotary_angles(end, self.size, device)
        return cosine[-length:], sine[-length:]

    def flops_per_token(self, sequence_length: int) -> float:
        """6 N + 12 L C T (PaLM, 2022, appendix B): N without the input embedding, and attention to
        all positions of the sequence.
        """
        blocks = sum(parameter.numel() for parameter in self.blocks.parameters())
        multiplied = blocks + self.classes * self.size.width
        return 6.0 * multiplied + 12.0 * self.size.layers * self.size.width * sequence_length

    @property
    def tied(self) -> bool:
        """Whether the embedding is the output layer as well."""
        return isinstance(self.head, TiedHead)

    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Normally distributed. Layers that add to the residual stream are scaled down by the
        number of additions (GPT-2).
        """
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        deviation = _INITIAL_DEVIATION
        if name.endswith(
            "project_out.weight"
        ):  # two layers of each block add to the residual stream
            deviation /= (2 * self.size.layers) ** 0.5
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)
