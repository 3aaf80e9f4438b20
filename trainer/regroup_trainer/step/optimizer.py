"""The update rules and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer

from regroup_trainer.protocol.config import OptimizerConfig

_FUSED_ON = frozenset({"cpu", "cuda", "xpu", "mps"})


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The configured optimizer for all parameters of a model, however they are sharded."""
    if config.name == "muon":
        return MuonWithAdamW(model, config)
    return AdamW(
        parameter_groups(list(model.parameters()), config),
        **adamw_options(list(model.parameters()), config),
    )


def parameter_groups(
    parameters: list[nn.Parameter], config: OptimizerConfig
) -> list[dict[str, Any]]:
    """Two groups: matrices (and tensors of more dimensions) decay, vectors do not."""
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def adamw_options(parameters: list[nn.Parameter], config: OptimizerConfig) -> dict[str, Any]:
    """Arguments of AdamW (Loshchilov & Hutter, 2019), with the fastest kernel that the parameters
    allow.

    One kernel can update many parameters only if all are plain, or all are sharded over the same
    mesh.
    """
    kinds = {(p.device.type, p.device_mesh if isinstance(p, DTensor) else None) for p in parameters}
    fused = len(kinds) <= 1 and all(device in _FUSED_ON for device, _ in kinds)
    kernel = {"fused": True} if fused else {"foreach": False}
    return {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
        **kernel,
    }


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al., 2024) for the matrices of the blocks, AdamW for embeddings, head and
    vectors.

    From outside it is one optimizer with one state. Muon's step is scaled to the size of AdamW's
    (Liu et al., 2025), so that one learning rate and one weight decay serve both. To orthogonalise
    a sharded matrix every rank needs the whole: DTensor gathers it, which costs communication in
    every step. It is computed in bf16, so results agree less closely between world sizes than with
    AdamW.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        matrices, others = split_for_muon(model)
        self._muon = Muon(
            matrices,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = AdamW(parameter_groups(others, config), **adamw_options(others, config))
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._share_state()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients."""
        self._muon.step(closure)  # type: ignore[no-untyped-call]
        self._adamw.step(closure)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share_state()

    def _share_state(self) -> None:
        self._muon.param_groups, self._adamw.param_groups = (
            self.param_groups[:1],
            self.param_groups[1:],
        )
        self._muon.state = self._adamw.state = self.state


def split_for_muon(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices of the blocks, and all other parameters."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = "blocks" in name.split(".") and parameter.ndim == 2
        (matrices if inner else others).append(parameter)
    return matrices, others


def learning_rate(step: int, total_steps: int, config: OptimizerConfig) -> float:
    """The learning rate of step 1, 2, ... `total_steps`: linear warm-up to the peak, then half a
    cosine down to the minimum.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (
        config.min_learning_rate_ratio + (1.0 - config.min_learning_rate_ratio) * cosine
    )


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate
