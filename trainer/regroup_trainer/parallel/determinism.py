"""Settings of a process with which the same operations on the same values give the same bits."""

from __future__ import annotations

import os

import torch

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def require_determinism() -> None:
    """Allow only deterministic kernels from now on; an operation without one raises RuntimeError.
    Call it before CUDA is used.

    The trainer fixes the number of threads. All ranks must run on one kind of processor or GPU,
    since kernels differ.
    """
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(True)
    # Filling uninitialised memory costs time, and nothing reads it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
