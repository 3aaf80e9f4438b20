"""Estimates the memory of the rank that needs most.

What is kept in which precision is this trainer's: parameters, gradients and both moments of AdamW
in fp32; forward and backward in fp32 or bf16. The measured peaks of
tests/client/planning/test_memory_estimate.py keep these formulas honest.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup.planning.hardware import Gpu
from regroup.planning.layouts import Batch, Layout
from regroup.planning.transformer import Transformer

FP32 = 4
MOMENTS = 2 * FP32
"""Moments of AdamW per parameter."""
DEVICE_RESERVE = 2 * 10**9
"""Bytes of CUDA context, cuBLAS workspace and NCCL buffers: nvidia-smi shows 1 to 2 GB on 8-GPU
machines before the first step.
"""
FRAGMENTATION = 0.05
"""Share of the device's memory that a caching allocator with expandable segments cannot use."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank, at the moment of the step when their sum is largest."""

    parameters: int
    gradients: int
    """Gradients that exist at this moment. Sharded ones appear one by one, as activations are
    freed.
    """
    optimizer: int
    activations: int
    """Activations that the backward pass needs."""
    working: int
    """Gathered parameters, unreduced gradients, and the buffers of one block or of the loss."""

    @property
    def total(self) -> int:
        """The sum. What the device itself needs is not part of it: see `usable`."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.working


def usable(gpu: Gpu) -> int:
    """Bytes of a device that are left for tensors."""
    reserve = 0 if gpu.is_cpu else DEVICE_RESERVE
    return int(gpu.memory * (1 - FRAGMENTATION)) - reserve


def estimate(model: Transformer, layout: Layout, batch: Batch, element: int) -> Memory:
    """Peak of a training step; `element` is the bytes of a number in forward and backward.

    The first stage of a pipeline keeps most activations, the last one has the loss: the larger
    counts.
    """
    stages = {0, layout.grid.pipeline - 1}
    return max(
        (_Stage(model, layout, batch, element, stage).memory() for stage in stages),
        key=lambda m: m.total,
    )


@dataclass(frozen=True)
class _Stage:
    """One stage of the pipeline; the whole model without a pipeline."""

    model: Transformer
    layout: Layout
    batch: Batch
    element: int
    number: int

    @property
    def _is_last(self) -> bool:
        return self.number == self.layout.grid.pipeline - 1

    @property
    def _root(self) -> int:
        """Parameters in no block, per tensor rank. A tied embedding is needed at both ends of a
        pipeline.
        """
        if self.layout.grid.pipeline == 1:
            return self.model.root_parameters // self.layout.grid.tensor
        return self.model.embedding_parameters // self.layout.grid.tensor

    @property
    def _block(self) -> int:
        return self.model.block_parameters // self.layout.grid.tensor

    @property
    def _parameters(self) -> int:
        return self.layout.grid.layers_per_stage(self.model) * self._block + self._root

    @property
    def _tokens(self) -> int:
        return self.layout.micro_batch * self.batch.sequence_length

    @property
    def _shards(self) -> bool:
        return self.layout.grid.shard > 1

    @property
    def _residual(self) -> int:
        """Bytes of a number in the residual stream. Autocast keeps it in fp32; sharding casts all
        of it.
        """
        return self.element if self._shards else FP32

    def memory(self) -> Memory:
        grid = self.layout.grid
        activations = self._kept_per_micro_batch() * self._in_flight()
        gradients = FP32 * self._parameters // grid.shard
        return Memory(
            parameters=FP32 * self._parameters // grid.shard,
            gradients=max(0, gradients - activations) if self._shards else gradients,
            optimizer=MOMENTS * self._parameters // grid.optimizer_shards,
            activations=activations,
            working=self._parameters_in_use()
            + max(self._passing(), self._block * self.element if self._shards else 0),
        )

    def _in_flight(self) -> int:
        """Micro-batches that wait for their backward pass (1F1B; Megatron-2, section 2.2.1)."""
        return min(self.layout.grid.pipeline - self.number, self.layout.micro_batches(self.batch))

    def _parameters_in_use(self) -> int:
        grid, element = self.layout.grid, self.element
        accumulates = self.layout.micro_batches(self.batch) > 1
        if not self._shards:
            # Autocast's copies of the matrices live from forward to backward; DDP accumulates
            # beside its buckets.
            copies = element if element < FP32 else 0
            return self._parameters * (copies + (FP32 if accumulates and grid.data > 1 else 0))
        # The root stays gathered, and so do two blocks: the next one is fetched while one is used.
        gathered = (self._root + 2 * self._block) * element
        # What reduces a block's gradients in fp32 while the next block's backward runs, and what
        # comes out of it.
        reducing = (self._block + self._root) * FP32 + FP32 * self._block // grid.shard
        # Each micro-batch's gradients are reduced at once; a pipeline's schedule keeps them whole
        # until its last one.
        return (
            gathered
            + reducing
            + (self._parameters * FP32 if accumulates and grid.pipeline > 1 else 0)
        )

    def _kept_per_micro_batch(self) -> int:
        """Activations that autograd keeps (counted as in Recomputation, section 4, for this
        trainer's blocks).
        """
        kept = {
            "none": self._kept_by_block,
            "selective": self._kept_by_products,
            "full": self._input_of_block,
        }
        return self.layout.grid.layers_per_stage(self.model) * kept[self.layout.checkpointing]()

    def _input_of_block(self) -> int:
        return self._tokens * self.model.width * self._residual // self.layout.grid.tensor

    def _kept_by_block(self) -> int:
        """Bytes of the inputs of every operation of a block. Flash attention keeps no scores."""
        model, tensor = self.model, self.layout.grid.tensor
        stream = 2 * model.width * self._residual // tensor
        normed = 2 * model.width * self.element  # gathered by sequence parallelism, and kept so
        projected = model.width + 2 * model.key_value_width
        rotated = model.width + model.key_value_width
        perceptron = (4 if model.gated else 2) * model.feed_forward_width
        inner = (projected + rotated + model.width + perceptron) * self.element // tensor
        return self._tokens * (stream + normed + inner + model.heads * FP32 // tensor)

    def _kept_by_products(self) -> int:
        """Bytes of the input of a block, and of the results of its matrix products and of
        attention.
        """
        model, tensor = self.model, self.layout.grid.tensor
        attention = 3 * model.width + 2 * model.key_value_width
        perceptron = (2 if model.gated else 1) * model.feed_forward_width + model.width
        products = (attention + perceptron) * self.element // tensor
        return self._input_of_block() + self._tokens * products

    def _passing(self) -> int:
        """Bytes that the loss, or the backward pass of one block, needs at a time. The logits exist
        during both.
        """
        block = self._backward_of_block()
        if not self._is_last:
            return block
        logits = (
            self._tokens
            * self.model.vocabulary
            // self.layout.grid.tensor
            // self.batch.loss_chunks
        )
        # Logits; their log-softmax and two gradients in fp32.
        return max(logits * (self.element + 3 * FP32), logits * self.element + block)

    def _backward_of_block(self) -> int:
        recomputed = {
            "none": 0,
            "selective": max(0, self._kept_by_block() - self._kept_by_products()),
            "full": self._kept_by_block(),
        }[self.layout.checkpointing]
        gradients = (
            self._tokens * (2 * self.model.feed_forward_width + 2 * self.model.width) * self.element
        )
        return recomputed + gradients // self.layout.grid.tensor
