"""Estimates the memory of the rank that needs most.

What is kept in which precision is this trainer's: parameters, gradients and both moments of AdamW
in fp32; forward and backward in fp32 or bf16. The measured peaks of
tests/trainer/parallel/test_planned_memory.py keep these formulas honest.
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
    """Gradients that exist at this moment. Sharded ones of a single micro-batch appear one by one,
    as activations are freed; those of earlier micro-batches are all there.
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
        """Tokens of a micro-batch on this rank."""
        return self.layout.tokens(self.batch)

    @property
    def _shards(self) -> bool:
        return self.layout.grid.parameter_shards > 1

    @property
    def _accumulates(self) -> bool:
        return self.layout.micro_batches(self.batch) > 1

    @property
    def _residual(self) -> int:
        """Bytes of a number in the residual stream. Autocast keeps it in fp32; sharding casts all
        of it.
        """
        return self.element if self._shards else FP32

    def memory(self) -> Memory:
        grid = self.layout.grid
        activations = self._kept_per_micro_batch() * self._in_flight()
        shard = FP32 * self._parameters // grid.parameter_shards
        return Memory(
            parameters=shard,
            gradients=self._gradients(shard, activations),
            optimizer=MOMENTS * self._parameters // grid.optimizer_shards,
            activations=activations,
            working=self._working(),
        )

    def _gradients(self, shard: int, activations: int) -> int:
        """Bytes of gradients at the worst moment. Those of a single micro-batch appear as
        activations, and copies of parameters, are freed.
        """
        if self._shards and self._accumulates and self.layout.grid.pipeline > 1:
            return 0  # their shards appear as the whole ones, which are counted as working, go
        if self._accumulates or not (self._shards or self._copies_modules):
            return shard
        if self._shards:
            return max(0, shard - activations)
        return max(0, shard + (FP32 - self.element) * self._block - self._copies - activations)

    def _working(self) -> int:
        if self._shards:
            return self._working_sharded()
        return self._working_of_modules() if self._copies_modules else self._working_whole()

    @property
    def _copies_modules(self) -> bool:
        """Whether FSDP2's machinery replicates the model, as it does within model parallelism."""
        return self.layout.grid.ranks_per_row > 1 and not self._shards

    @property
    def _copies(self) -> int:
        """Bytes of the parameters that a forward pass copies, in its precision."""
        return self._parameters * self.element

    def _working_of_modules(self) -> int:
        """Copies of the parameters live from forward to backward, in fp32 too. One block's are
        there with its gradients.
        """
        passing = max(self._passing_of_loss(), self._passing_of_block())
        return self._copies + self._block * self.element + passing

    def _in_flight(self) -> int:
        """Micro-batches that wait for their backward pass (1F1B; Megatron-2, section 2.2.1)."""
        return min(self.layout.grid.pipeline - self.number, self.layout.micro_batches(self.batch))

    def _working_whole(self) -> int:
        """Autocast's copies of the matrices live from forward to backward. A pass makes gradients
        beside those of the earlier ones, in the buckets of DDP and without it.
        """
        copies = self.element if self.element < FP32 else 0
        beside = FP32 if self._accumulates else 0
        return self._parameters * (copies + beside) + max(
            self._passing_of_loss(), self._passing_of_block()
        )

    def _working_sharded(self) -> int:
        """What FSDP2 has beside the shards: while the loss is computed, or during a block's
        backward pass.

        The root and its gradient stay until the end of the pass. A block is there with the next
        one, which is fetched early, and with its gradients. From the second block on, the gradients
        of the one before are reduced in fp32, and its activations are gone.
        """
        gradients = max(self._block * self.element, self._passing_of_block())
        freed = self._kept_per_micro_batch() // self.layout.grid.layers_per_stage(self.model)
        reduced = max(0, self._block * FP32 - freed)
        # A pipeline's schedule keeps gradients whole until its last micro-batch.
        whole = self._accumulates and self.layout.grid.pipeline > 1
        return (
            2 * self._root * self.element
            + (self._parameters * FP32 if whole else 0)
            + max(self._passing_of_loss(), 2 * self._block * self.element + gradients + reduced)
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
        kept = self._tokens * (stream + normed + inner + model.heads * FP32 // tensor)
        return kept + self._kept_by_slices()

    def _kept_by_slices(self) -> int:
        """Bytes of the keys and values of all slices, in place of this slice's keys, and of the
        mask.
        """
        context = self.layout.grid.context
        if context == 1:
            return 0
        gathered = (2 * context - 1) * self.model.key_value_width // self.layout.grid.tensor
        mask = self.batch.sequence_length**2 // context
        return (self._tokens * gathered + mask) * self.element

    def _kept_by_products(self) -> int:
        """Bytes of the input of a block, and of the results of its matrix products and of
        attention.
        """
        model, tensor = self.model, self.layout.grid.tensor
        attention = 2 * model.width + 2 * model.key_value_width
        perceptron = (2 if model.gated else 1) * model.feed_forward_width
        summed = 2 * model.width  # what leaves both: each tensor rank has a summand of the whole
        products = (attention + perceptron) * self.element // tensor + summed * self.element
        return self._input_of_block() + self._tokens * products

    @property
    def _logits(self) -> int:
        """Elements of the logits; none but on the last stage of a pipeline."""
        if not self._is_last:
            return 0
        grid = self.layout.grid
        return self._tokens * self.model.vocabulary // grid.tensor // self.batch.loss_chunks

    def _passing_of_loss(self) -> int:
        """Bytes of the logits, and of their log-softmax and two gradients in fp32."""
        return self._logits * (self.element + 3 * FP32)

    def _passing_of_block(self) -> int:
        """Bytes that the backward pass of one block needs at a time, beside the logits."""
        return self._logits * self.element + self._backward_of_block()

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
