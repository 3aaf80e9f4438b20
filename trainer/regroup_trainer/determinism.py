"""What a process must be told so that the same operations on the same values give the same bits."""

from __future__ import annotations

import os

import torch

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def require_determinism() -> None:
    """Only deterministic kernels from now on; an operation without one raises RuntimeError. Before the first of CUDA's.

    The number of threads is fixed by the trainer. Ranks must run on one kind of processor or GPU: another has other
    kernels.
    """
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time, and nothing reads such memory
    torch.backends.cudnn.benchmark = False
