"""Imports all that a rank needs up to its first step, so that a rank forked from here starts at once.

Half of a process start is imports, several of which torch makes lazily. Nothing here starts a thread, runs a tensor
operation or asks for a GPU: a fork after any of these is unsafe.
"""

from __future__ import annotations

import importlib

MODULES = (
    "regroup_trainer.channel",
    "regroup_trainer.rank",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.serialization.config",
)
"""What a first step imports, directly or lazily; a test compares it with what really happens."""

for _module in MODULES:
    importlib.import_module(_module)
