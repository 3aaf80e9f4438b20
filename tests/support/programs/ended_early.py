"""Runs a program, and signals rank 1 after a step of the optimizer, before any failure.

`ended_early.py SIGNAL STEP SCRIPT [ARGUMENT ...]`
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

chosen, last = signal.Signals[sys.argv[1]], int(sys.argv[2])
steps = 0


def count(*_: Any) -> None:
    """Signal this rank when its turn has come."""
    global steps
    steps += 1
    if steps == last and os.environ["RANK"] == "1":
        os.kill(os.getpid(), chosen)


if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    register_optimizer_step_post_hook(count)
sys.argv = sys.argv[3:]
sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120 - as Python itself does
runpy.run_path(sys.argv[0], run_name="__main__")
