"""Estimates the communication and time of a step, for the rank that all others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regroup.planning.hardware import Cluster
from regroup.planning.layouts import Batch, Layout
from regroup.planning.memory_estimate import FP32, MOMENTS
from regroup.planning.transformer import Transformer

BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in both passes: it has two products for each one of the forward
pass.
"""
RECOMPUTED = {"none": 0.0, "selective": 0.05, "full": 1 / 3}
"""Additional operations, as a share of both passes: the whole forward pass, or a few percent
(Recomputation, table 4).
"""

_WITHIN_LAYERS = ("activations of layers", "keys and values")
"""Purposes of the communication that a layer waits for."""

Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]
Link = Literal["local", "network"]


@dataclass(frozen=True)
class Traffic:
    """One kind of communication of a step."""

    purpose: str
    kind: Kind
    link: Link
    sent: float
    """Bytes that a rank sends per step."""
    seconds: float
    """Seconds without computation beside it."""
    exposed: float
    """Seconds that computation does not hide."""


@dataclass(frozen=True)
class StepTime:
    """The parts of a step, in seconds."""

    compute: float
    """Forward, backward and recomputation."""
    bubble: float
    """Idle while the pipeline fills and drains."""
    update: float
    """The optimizer reads and writes its state."""
    traffic: tuple[Traffic, ...]
    model_flops: float
    """Operations of the step on all ranks, without recomputation."""

    @property
    def exposed(self) -> float:
        """Seconds of communication that computation does not hide."""
        return sum(part.exposed for part in self.traffic)

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return self.compute + self.bubble + self.update + self.exposed

    def sent(self, link: Link) -> float:
        """Bytes that a rank sends over this link in a step."""
        return sum(part.sent for part in self.traffic if part.link == link)

    def utilisation(self, cluster: Cluster) -> float:
        """Model FLOPs utilisation (PaLM, appendix B)."""
        return self.model_flops / (self.total * cluster.devices * cluster.gpu.flops)


@dataclass(frozen=True)
class _Group:
    """Ranks that communicate, and the bandwidth that each of them has for it."""

    size: int
    bandwidth: float
    link: Link
    hop: float
    """Seconds of latency of one step of a ring."""

    def ring(self, amount: float, times: int = 1) -> tuple[float, float]:
        """Bytes sent and seconds of one pass around the ring with `amount` bytes in all, `times` a
        step (Ring).
        """
        sent = amount * (self.size - 1) / self.size
        hops = (self.size - 1) * self.hop
        return sent * times, times * (sent / self.bandwidth + hops)


def _group(cluster: Cluster, size: int, stride: int) -> _Group:
    """A group of `size` ranks that are `stride` ranks apart. The groups of a machine share its
    network.
    """
    if size * stride <= cluster.gpus_per_node:
        return _Group(size, _local_bandwidth(cluster), "local", cluster.efficiency.local_hop)
    return _network_group(cluster, size, sharing=min(stride, cluster.gpus_per_node))


def _stages(cluster: Cluster, pipeline: int, stride: int) -> _Group:
    """Two stages, `stride` ranks apart. All others wait for those that are on two machines."""
    if pipeline * stride <= cluster.gpus_per_node:
        return _group(cluster, 2, stride)
    return _network_group(cluster, 2, sharing=min(stride, cluster.gpus_per_node))


def _network_group(cluster: Cluster, size: int, sharing: int) -> _Group:
    """`sharing`: the ranks of a machine that send to other machines at once. Whatever a rank sends
    leaves it over the links within the machine.
    """
    efficiency = cluster.efficiency
    network = cluster.network_bandwidth * efficiency.network.value / sharing
    return _Group(size, min(network, _local_bandwidth(cluster)), "network", efficiency.network_hop)


def _local_bandwidth(cluster: Cluster) -> float:
    return cluster.gpu.local_bandwidth * cluster.efficiency.local.value


def estimate(model: Transformer, layout: Layout, batch: Batch, cluster: Cluster) -> StepTime:
    """Expected time of a step."""
    return _Step(model, layout, batch, cluster).time()


@dataclass(frozen=True)
class _Step:
    model: Transformer
    layout: Layout
    batch: Batch
    cluster: Cluster

    @property
    def _micro_batches(self) -> int:
        return self.layout.micro_batches(self.batch)

    @property
    def _tokens(self) -> int:
        """Tokens of a micro-batch on a rank."""
        return self.layout.tokens(self.batch)

    @property
    def _parameters(self) -> int:
        grid = self.layout.grid
        return self.model.parameters // (grid.pipeline * grid.tensor)

    @property
    def _compute(self) -> float:
        """Seconds of computation of a rank. A short last micro-batch is padded and costs the
        same.

        The last slice of a sequence attends to all positions: twice the mean of a causal sequence.
        """
        grid, length = self.layout.grid, self.batch.sequence_length
        tokens = self._micro_batches * self.layout.samples(self.batch) * length
        more = self.model.attention_flops_per_token(length) if grid.context > 1 else 0.0
        flops = tokens * (self.model.flops_per_token(length) + more) / grid.ranks_per_row
        rate = self.cluster.gpu.flops * self.cluster.efficiency.compute.value
        return flops * (1 + RECOMPUTED[self.layout.checkpointing]) / rate

    def time(self) -> StepTime:
        grid, flops = self.layout.grid, self.model.flops_per_token(self.batch.sequence_length)
        traffic = (
            *self._tensor_traffic(),
            *self._context_traffic(),
            *self._pipeline_traffic(),
            *self._data_traffic(),
        )
        waiting = self._compute + sum(
            part.seconds for part in traffic if part.purpose in _WITHIN_LAYERS
        )
        return StepTime(
            compute=self._compute,
            # (p - 1) / m of the time that a stage is busy (Megatron-2, section 2.2.1).
            bubble=waiting * (grid.pipeline - 1) / self._micro_batches,
            update=self._update(),
            traffic=tuple(part for part in traffic if part.sent),
            model_flops=self.batch.tokens * flops,
        )

    def _update(self) -> float:
        parameters = self._parameters / self.layout.grid.optimizer_shards
        touched = (
            3 * FP32 + 2 * MOMENTS
        )  # read parameter, gradient, moments; write parameter, moments
        return parameters * touched / self.cluster.gpu.memory_bandwidth

    def _tensor_traffic(self) -> list[Traffic]:
        """With sequence parallelism: a gather and a scatter around attention and around the
        perceptron, each way.
        """
        grid = self.layout.grid
        if grid.tensor == 1:
            return []
        group = _group(self.cluster, grid.tensor, 1)
        amount = self._tokens * self.model.width * self.cluster.gpu.element_bytes
        passes = 3 if self.layout.checkpointing == "full" else 2
        parts = []
        kinds: tuple[Kind, ...] = ("all-gather", "reduce-scatter")
        layers = self.layout.grid.layers_per_stage(self.model)
        for kind in kinds:
            sent, seconds = group.ring(amount, 2 * passes * layers * self._micro_batches)
            parts.append(Traffic("activations of layers", kind, group.link, sent, seconds, seconds))
        return parts

    def _context_traffic(self) -> list[Traffic]:
        """Keys and values of all slices, gathered again where activations are recomputed; the
        gradients of both are summed and scattered.
        """
        grid = self.layout.grid
        if grid.context == 1:
            return []
        group = _group(self.cluster, grid.context, grid.tensor)
        width = 2 * self.model.key_value_width // grid.tensor
        whole = self._tokens * grid.context * width * self.cluster.gpu.element_bytes
        gathers = 1 if self.layout.checkpointing == "none" else 2
        times = 2 * grid.layers_per_stage(self.model) * self._micro_batches
        parts = []
        kinds: tuple[tuple[Kind, int], ...] = (("all-gather", gathers), ("reduce-scatter", 1))
        for kind, passes in kinds:
            sent, seconds = group.ring(whole / 2, passes * times)  # keys apart from values
            parts.append(Traffic("keys and values", kind, group.link, sent, seconds, seconds))
        return parts

    def _pipeline_traffic(self) -> list[Traffic]:
        """Activations to the next stage, and gradients back. Computation hides all but those that
        fill the pipeline.
        """
        grid = self.layout.grid
        if grid.pipeline == 1:
            return []
        stride = grid.tensor * grid.context * grid.shard
        group = _stages(self.cluster, grid.pipeline, stride)
        amount = self._tokens * self.model.width * self.cluster.gpu.element_bytes
        once = amount / group.bandwidth + group.hop
        sent, count = 2.0 * amount * self._micro_batches, 2 * self._micro_batches
        exposed = once * 2 * (grid.pipeline - 1)
        return [Traffic("activations of stages", "send", group.link, sent, once * count, exposed)]

    def _data_traffic(self) -> list[Traffic]:
        grid = self.layout.grid
        if grid.parameter_shards == 1:
            # The stages of a copy lie between its ranks and those of the next one.
            stride = grid.tensor * grid.pipeline
            return self._replicated(_group(self.cluster, grid.copies, stride))
        parts = self._sharded(_group(self.cluster, grid.parameter_shards, grid.tensor))
        if grid.replicate > 1:
            group = _group(
                self.cluster, grid.replicate, grid.parameter_shards * grid.tensor * grid.pipeline
            )
            amount = FP32 * self._parameters / grid.parameter_shards
            parts.append(self._all_reduce(group, amount, "gradients of replicas"))
        return parts

    def _replicated(self, group: _Group) -> list[Traffic]:
        if group.size == 1:
            return []
        parts = [self._all_reduce(group, FP32 * self._parameters, "gradients")]
        if (
            self.layout.grid.kind.shards_optimizer_alone
        ):  # each owner sends what it updated (ZeRO, section 7)
            sent, seconds = group.ring(FP32 * self._parameters)
            parts.append(
                Traffic("updated parameters", "broadcast", group.link, sent, seconds, seconds)
            )
        return parts

    def _all_reduce(self, group: _Group, amount: float, purpose: str) -> Traffic:
        """A scatter and a gather, while the last micro-batch's backward pass runs."""
        sent, seconds = group.ring(amount, 2)
        hidden = self._compute / self._micro_batches * BACKWARD_SHARE
        return Traffic(purpose, "all-reduce", group.link, sent, seconds, max(0.0, seconds - hidden))

    def _sharded(self, group: _Group) -> list[Traffic]:
        """Parameters are gathered block by block in both passes of each micro-batch, gradients
        reduced in the second.

        A pipeline reduces in its last micro-batch only.
        """
        gathers = 2 * self._micro_batches
        sent, seconds = group.ring(self.cluster.gpu.element_bytes * self._parameters, gathers)
        blocks = self.layout.grid.layers_per_stage(self.model)
        seconds += gathers * (blocks - 1) * (group.size - 1) * group.hop  # a collective per block
        gather = Traffic(
            "parameters", "all-gather", group.link, sent, seconds, max(0.0, seconds - self._compute)
        )
        reductions = self._micro_batches if self.layout.grid.pipeline == 1 else 1
        sent, seconds = group.ring(FP32 * self._parameters, reductions)
        spare = (
            max(0.0, self._compute - gather.seconds)
            * reductions
            / self._micro_batches
            * BACKWARD_SHARE
        )
        reduce = Traffic(
            "gradients", "reduce-scatter", group.link, sent, seconds, max(0.0, seconds - spare)
        )
        return [gather, reduce]
