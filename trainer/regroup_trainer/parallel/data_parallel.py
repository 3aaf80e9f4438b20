"""Data parallelism: wraps copies or shards of a model, so that gradients are summed over the
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_module
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.models.initialize import initialize
from regroup_trainer.parallel.gradient_sum import SummedDDP
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.strategies import STRATEGIES, StrategyName
from regroup_trainer.system.log_lines import rank_log


def replicate(
    model: Model, config: TrainConfig, group: GenerationGroup, devices: DeviceMesh
) -> nn.Module:
    """DDP: every rank holds the whole model. Exact sums are made after the backward passes, without
    DDP.

    DDP knows neither DTensors nor the schedule of a pipeline. So a model-parallel model is
    replicated by FSDP2's machinery.
    """
    if config.parallelism.is_model_parallel:
        _wrap_blocks(model, config, partial(replicate_module, mesh=devices["replicate"]))
        _allocate(model, config, group.device)
        return model
    _allocate(model, config, group.device)
    return replicate_as_it_is(model, config, devices)


def replicate_as_it_is(model: nn.Module, config: TrainConfig, devices: DeviceMesh) -> nn.Module:
    """DDP around a whole model that has its values on every rank, or is about to get them."""
    if config.training.deterministic == "exact":
        return model
    return SummedDDP(
        model,
        config.parallelism,
        device_mesh=devices["replicate"],
        # every rank made the same values, loads the same checkpoint, or receives those of a peer
        init_sync=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=config.parallelism.bucket_megabytes,
        static_graph=config.parallelism.static_graph,
    )


def shard(
    model: Model, config: TrainConfig, group: GenerationGroup, devices: DeviceMesh
) -> nn.Module:
    """FSDP2: parameters, gradients and optimizer state are sharded over the ranks of `shard`, and
    replicated along `replicate`.
    """
    layout = config.parallelism
    mesh = devices[STRATEGIES[layout.strategy].dimensions]
    offload = (
        CPUOffloadPolicy(pin_memory=group.device.type != "cpu")
        if layout.cpu_offload
        else OffloadPolicy()
    )
    wrap = partial(
        fully_shard,
        mesh=mesh,
        offload_policy=offload,
        reshard_after_forward=layout.reshard_after_forward,
    )
    _wrap_blocks(model, config, wrap)
    _allocate(model, config, torch.device("cpu") if layout.cpu_offload else group.device)
    return model


def thread(model: Model, config: TrainConfig, group: GenerationGroup, _: DeviceMesh) -> nn.Module:
    """nn.DataParallel: one process with a thread for each of its GPUs, to teach and compare. Raises
    ConfigurationError.
    """
    if group.size > 1:
        raise ConfigurationError(
            "parallelism.strategy: 'dp' is one process that uses all its GPUs, and the world size "
            f"is {group.size}: use 'ddp', or one replica with nprocPerNode 1"
        )
    rank_log.warning(
        "parallelism.strategy dp (nn.DataParallel) is for teaching: it copies the model to every "
        "GPU and gathers all "
        "outputs on the first one in each step, and its threads share one Python interpreter. ddp "
        "keeps a process and "
        "a copy for each GPU, overlaps communication with the backward pass and goes beyond one "
        "machine"
    )
    _allocate(model, config, group.device)
    return nn.DataParallel(model)


DATA_PARALLEL: dict[
    StrategyName, Callable[[Model, TrainConfig, GenerationGroup, DeviceMesh], nn.Module]
] = {
    "ddp": replicate,
    "zero": replicate,
    "fsdp": shard,
    "hsdp": shard,
    "dp": thread,
}
"""parallelism.strategy -> how to wrap the model."""


def _allocate(model: Model, config: TrainConfig, device: torch.device) -> None:
    model.to_empty(device=device)
    initialize(model, model, config.training.seed)


def _wrap_blocks(model: Model, config: TrainConfig, wrap: Callable[..., FSDPModule]) -> None:
    """Wrap the blocks first, so that they are gathered one at a time; the root gathers the rest.

    An embedding that serves at both ends of the model therefore belongs to the root.
    """
    policy = _mixed_precision(config)
    # The root has cast the inputs of blocks already, except rotary angles, which must stay in
    # float32.
    inner = dataclasses.replace(policy, cast_forward_inputs=False)
    for block in model.blocks:
        _reduce_by_sum(wrap(block, mp_policy=inner))
    _reduce_by_sum(wrap(model, mp_policy=policy))


def _reduce_by_sum(module: FSDPModule) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum


def _mixed_precision(config: TrainConfig) -> MixedPrecisionPolicy:
    if config.training.precision == "bf16":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()
