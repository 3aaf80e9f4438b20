"""The shape of a decoder-only transformer: how many parameters and operations it has."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.protocol.config import ModelConfig

HEAD_WIDTH = 128


@dataclass(frozen=True)
class Transformer:
    """The sizes that decide costs, with the names of `trainer.model.dimensions`."""

    layers: int
    width: int
    """Channels of the residual stream (C)."""
    heads: int
    key_value_heads: int
    """Fewer than `heads` with grouped queries."""
    feed_forward_width: int
    """Channels between the two matrices of a perceptron (F)."""
    gated: bool
    """A third matrix gates the perceptron (SwiGLU)."""
    vocabulary: int
    tied: bool
    """Input and output embeddings are one matrix."""

    @property
    def key_value_width(self) -> int:
        """Channels of all keys, and equally of all values."""
        return self.width // self.heads * self.key_value_heads

    @property
    def block_parameters(self) -> int:
        """Parameters of a block: attention, perceptron and two norms."""
        attention = 2 * self.width * (self.width + self.key_value_width)
        perceptron = (3 if self.gated else 2) * self.width * self.feed_forward_width
        return attention + perceptron + 2 * self.width

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one embedding matrix."""
        return self.vocabulary * self.width

    @property
    def root_parameters(self) -> int:
        """Parameters outside of blocks: embeddings and the last norm."""
        return (1 if self.tied else 2) * self.embedding_parameters + self.width

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.layers * self.block_parameters + self.root_parameters

    def flops_per_token(self, sequence_length: int) -> float:
        """Operations of forward and backward for one token: 6 N + 12 L C T (PaLM, appendix B; N
        without the input embedding).
        """
        multiplied = self.layers * self.block_parameters + self.embedding_parameters
        return 6.0 * multiplied + self.attention_flops_per_token(sequence_length)

    def attention_flops_per_token(self, sequence_length: int) -> float:
        """The part of `flops_per_token` that is attention to all positions of the sequence."""
        return 12.0 * self.layers * self.width * sequence_length


def of_model(model: ModelConfig, vocabulary: int) -> Transformer:
    """The shape of a configured model. Raises ValueError when it is not a transformer."""
    if model.name not in ("gpt", "llama"):
        raise ValueError(
            f"model.name {model.name!r} is no transformer: a plan is for gpt and llama, or for a "
            "number of parameters"
        )
    size, gated = model.size, model.name == "llama"
    # As the trainer's Llama has it: 8/3 of the width, rounded up to a multiple of 8.
    inner = (
        (size.feed_forward_width or -(-8 * size.width // 3 // 8) * 8) if gated else 4 * size.width
    )
    return Transformer(
        layers=size.layers,
        width=size.width,
        heads=size.heads,
        key_value_heads=(size.key_value_heads or size.heads) if gated else size.heads,
        feed_forward_width=inner,
        gated=gated,
        vocabulary=vocabulary,
        tied=size.tied_embeddings if gated else True,
    )


def of_parameters(parameters: float, vocabulary: int) -> Transformer:
    """A plausible GPT of about that many parameters, when nothing but the number is known.

    Width = 128 x layers, in heads of 128 channels, perceptron 4 x width, tied embeddings: the
    proportions of GPT-3 175B (Brown et al., 2020, table 2.1: 96 layers of 12288). A block then has
    12 x width^2 parameters. Raises ValueError for a number that no such model has.
    """
    if not 1e5 <= parameters <= 1e14:
        raise ValueError("must lie between 1e5 and 1e14")
    counts = range(1, 2 * round((parameters / (12 * HEAD_WIDTH**2)) ** (1 / 3)) + 2)
    shapes = (_gpt(layers, vocabulary) for layers in counts)
    return min(shapes, key=lambda shape: abs(shape.parameters - parameters))


def _gpt(layers: int, vocabulary: int) -> Transformer:
    width = HEAD_WIDTH * layers
    return Transformer(
        layers=layers,
        width=width,
        heads=layers,
        key_value_heads=layers,
        feed_forward_width=4 * width,
        gated=False,
        vocabulary=vocabulary,
        tied=True,
    )
