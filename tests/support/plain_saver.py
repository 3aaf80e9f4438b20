"""A program that knows nothing of Regroup: it makes steps for ever, and saves when it gets
SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()


def save_and_end(*_: object) -> NoReturn:
    time.sleep(1.5)  # longer than a rank gets that has nothing to save
    (folder / f"saved-{rank}").touch()
    sys.exit(0)


signal.signal(signal.SIGTERM, save_and_end)
(folder / f"begun-{rank}-{time.time_ns()}").touch()
while True:
    time.sleep(0.01)
