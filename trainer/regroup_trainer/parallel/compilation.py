"""Compiles what each block computes, and the loss.

Only the blocks' own functions are compiled, before they are wrapped. Hooks that gather parameters
or reduce gradients stay outside. Blocks of one shape share one compiled function. The shapes of
micro-batches do not change within a generation, so nothing is compiled again after the first step.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.models.loss import loss_sum

_RECOMPILE_LIMIT = 64
"""Kinds of blocks x (training, evaluation). A ResNet has five kinds; torch's own limit of 8 is too
low.
"""


def compile_blocks(model: Model, device: torch.device) -> None:
    """Compile each block at its first call. Raises ConfigurationError when there is no compiler."""
    require_compiler(device)
    torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
    if device.type == "cpu":
        torch._inductor.config.compile_threads = (
            1  # a pool of processes for every rank would cost more than it saves
        )
    for block in model.blocks:
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)


@functools.cache
def compiled_loss_sum() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`loss_sum` as one kernel. It avoids float32 copies of the logits, which are larger than all
    activations.
    """
    compiled: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compile(loss_sum, dynamic=False)
    return compiled


def require_compiler(device: torch.device) -> None:
    """Raises ConfigurationError where generated code cannot be built: C++ for CPUs, Triton's C
    stubs for GPUs.
    """
    wanted = (
        [os.environ.get("CXX", "g++")]
        if device.type == "cpu"
        else [os.environ.get("CC", "gcc"), "clang", "cc"]
    )
    if not any(map(shutil.which, wanted)):
        raise ConfigurationError(
            f"training.compile: true needs a compiler, and there is no {' or '.join(wanted)} on "
            "this worker: "
            f"use an image that has one, or set it to false"
        )
