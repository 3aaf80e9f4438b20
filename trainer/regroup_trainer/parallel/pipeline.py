"""Pipeline parallelism: the stack of blocks is split into stages, and micro-batches pass through
them.

torch's schedules run the stages (1F1B: PipeDream-Flush, Narayanan et al., 2021; interleaved:
Megatron-LM, the same year). Losses are summed, never averaged, so that a pipeline trains as one
process does. Parameters keep the names of the whole model, also in checkpoints.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from regroup_trainer.data.batch import share
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.models.decoder import Decoder
from regroup_trainer.models.loss import loss_sum
from regroup_trainer.parallel.mesh import Mesh
from regroup_trainer.protocol.config import ParallelismConfig, TrainConfig

_EMBEDDING = "embedding.weight"


class Batch(Protocol):
    """A micro-batch on the device; see `step.rank_batch.DeviceBatch`."""

    @property
    def inputs(self) -> Tensor:
        """[B, T]"""

    @property
    def targets(self) -> Tensor:
        """[B, T]"""

    @property
    def weights(self) -> Tensor:
        """[B]"""


@dataclass(frozen=True)
class Stages:
    """The stages that a rank holds, and the number of all."""

    own: tuple[int, ...]
    count: int

    @property
    def starts(self) -> bool:
        """Whether the first stage is here."""
        return 0 in self.own

    @property
    def ends(self) -> bool:
        """Whether the last stage is here."""
        return self.count - 1 in self.own


def stages_of(place: int, parallelism: ParallelismConfig) -> Stages:
    """The stages of the rank at a place of the pipeline: every pipelineParallel-th, beginning with
    its own place.
    """
    count = parallelism.pipeline_parallel * parallelism.stages_per_rank
    return Stages(tuple(range(place, count, parallelism.pipeline_parallel)), count)


def require_stages(config: TrainConfig) -> None:
    """Raises ConfigurationError when the model has too few layers for the stages, or does what
    stages cannot.
    """
    parallelism, model = config.parallelism, config.model
    parts = f"parallelism.pipelineParallel: {parallelism.pipeline_parallel}"
    if model.name == "resnet":
        raise ConfigurationError(
            f"{parts} cannot split model.name {model.name!r}: use a transformer, or 1"
        )
    count = parallelism.pipeline_parallel * parallelism.stages_per_rank
    if model.size.layers < count:
        raise ConfigurationError(
            f"{parts} with pipelineSchedule {parallelism.pipeline_schedule} makes {count} stages "
            f"of {model.size.layers}"
            f" layers: choose fewer ranks, or a deeper model"
        )
    if model.loss_chunks > 1:
        raise ConfigurationError(
            f"{parts} computes the loss at once: set model.lossChunks {model.loss_chunks} to 1"
        )


def split_into_stages(model: Model, stages: Stages) -> dict[int, Decoder]:
    """The parts of `model`, which is on the meta device, by stage. Blocks keep their numbers."""
    return {stage: _part(model, stage, stages.count) for stage in stages.own}


def _part(model: Model, stage: int, count: int) -> Decoder:
    part = copy.deepcopy(model)
    assert isinstance(part, Decoder)
    part.blocks = _Slice(
        {number: part.blocks[number] for number in share(len(part.blocks), stage, count)}
    )
    part.starts, part.ends = stage == 0, stage == count - 1
    if not part.starts and not (part.ends and part.tied):
        part.register_module("embedding", None)
    if not part.ends:
        part.register_module("final_norm", None)
        if not part.tied:
            part.register_module("head", None)
    return part


class _Slice(nn.ModuleList):
    """Some modules of a list, which keep their numbers."""

    def __init__(self, modules: dict[int, nn.Module]) -> None:
        super().__init__()
        for number, module in modules.items():
            self.add_module(str(number), module)


class Pipeline(nn.Module):
    """The parts of a model that this rank holds, as one module with the names of the whole."""

    def __init__(
        self, parts: dict[int, Decoder], config: TrainConfig, mesh: Mesh, devices: DeviceMesh
    ) -> None:
        super().__init__()
        self._stages = stages_of(mesh.place.pipeline, config.parallelism)
        self._parts = parts  # a dict, so that its modules are not registered under other names
        self._config = config
        self._group = devices["pipeline"].get_group()
        self._ends = _group_of_ends(mesh)
        self._schedules: dict[tuple[int, torch.Size], Schedule1F1B | ScheduleInterleaved1F1B] = {}
        self._losses: list[Tensor] = []
        self._scale = 1.0
        first, *others = parts.values()
        for name, child in first.named_children():
            self.add_module(name, child)
        self.blocks = _Slice(
            {int(n): block for part in parts.values() for n, block in part.blocks.named_children()}
        )
        for part in others:
            for name, child in part.named_children():
                if name != "blocks":
                    self.add_module(name, child)
        self.tied = first.tied

    def train_on(self, batches: Sequence[Batch], divisor: float) -> Tensor:
        """Run forward and backward passes of all micro-batches. Gradients are then reduced; they
        are those of the sum of losses / `divisor`.

        Returns the sum of losses on the last stage, 0 elsewhere. All ranks of the pipeline call it.
        """
        self._scale = 1.0 / divisor
        self._run(batches, train=True)
        self._add_up_tied_gradients()
        return self._total()

    @torch.no_grad()
    def evaluate_on(self, batches: Sequence[Batch]) -> Tensor:
        """The sum of losses on the last stage, 0 elsewhere."""
        self._run(batches, train=False)
        for part in self._parts.values():
            if isinstance(part, FSDPModule):
                part.reshard()  # no backward pass frees it
        return self._total()

    def copies(self, name: str) -> int:
        """The number of stages that hold the parameter of this name."""
        return 2 if self.tied and name == _EMBEDDING and self._ends is not None else 1

    def _run(self, batches: Sequence[Batch], *, train: bool) -> None:
        self._losses = []
        schedule = self._schedule(len(batches), batches[0].inputs.shape)
        act: Callable[..., object] = schedule.step if train else schedule.eval
        more = {"return_outputs": False} if train else {}
        act(
            arg_mbs=[(batch.inputs,) for batch in batches] if self._stages.starts else None,
            target_mbs=list(batches) if self._stages.ends else None,
            **more,
        )

    def _total(self) -> Tensor:
        device = next(self.parameters()).device
        return (
            torch.stack(self._losses).double().sum()
            if self._losses
            else torch.zeros((), device=device)
        )

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        loss = loss_sum(logits, batch.targets, batch.weights)
        self._losses.append(loss.detach())
        return loss * self._scale

    def _schedule(self, count: int, shape: torch.Size) -> Schedule1F1B | ScheduleInterleaved1F1B:
        """The schedule for `count` micro-batches [B, T]. The shapes that are sent are agreed on
        once for each.
        """
        key = (count, shape)
        if key not in self._schedules:
            stages = [self._stage(number, part, shape) for number, part in self._parts.items()]
            if self._config.parallelism.stages_per_rank > 1:
                self._schedules[key] = ScheduleInterleaved1F1B(
                    [*stages], count, loss_fn=self._loss, scale_grads=False
                )
            else:
                self._schedules[key] = Schedule1F1B(
                    stages[0], count, loss_fn=self._loss, scale_grads=False
                )
        return self._schedules[key]

    def _stage(self, number: int, part: Decoder, shape: torch.Size) -> PipelineStage:
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        dtype = torch.bfloat16 if self._config.training.precision == "bf16" else torch.float32
        sequence = shape[1] // self._config.parallelism.tensor_parallel
        stream = torch.empty(
            shape[0], sequence, part.size.width, dtype=dtype, device="meta", requires_grad=True
        )
        logits = torch.empty(*shape, part.classes, dtype=dtype, device="meta", requires_grad=True)
        return PipelineStage(
            part,
            number,
            self._stages.count,
            next(part.parameters()).device,
            input_args=tokens if part.starts else stream,
            output_args=logits if part.ends else stream,
            group=self._group,
        )

    def _add_up_tied_gradients(self) -> None:
        """Sum the gradients of an embedding that is also the output layer: both ends of the
        pipeline have one.
        """
        if not self.tied or self._ends is None:
            return
        gradient = self.get_parameter(_EMBEDDING).grad
        assert gradient is not None
        dist.all_reduce(
            gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=self._ends
        )


def _group_of_ends(mesh: Mesh) -> dist.ProcessGroup | None:
    """The group of the first and the last rank of this rank's pipeline; None on the ranks between
    them. All ranks call it.
    """
    own = None
    for ranks in mesh.groups("pipeline"):
        group = dist.new_group([ranks[0], ranks[-1]])
        if mesh.rank in (ranks[0], ranks[-1]):
            assert isinstance(group, dist.ProcessGroup)
            own = group
    return own
