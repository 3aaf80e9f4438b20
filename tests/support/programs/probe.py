"""A program that writes down what it finds of its process, to compare with `python probe.py`.

`probe.py FOLDER` writes FOLDER/found.json, and text to standard output and standard error by every
way there is.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import agent  # type: ignore[import-not-found]
import protocol  # type: ignore[import-not-found]
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

FOLDER = Path(sys.argv[1])
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class Squares(Dataset[int]):
    """Its class is in `__main__`: worker processes must find it there."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index * index


def loaded(context: str) -> list[int]:
    """What a worker process of a DataLoader gives."""
    loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=context)
    return [int(batch) for batch in loader]


def describe() -> dict[str, Any]:
    """What a program may rely on."""
    main = sys.modules["__main__"]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    return {
        "main": [
            main is sys.modules[Squares.__module__],
            main.__file__,
            type(main.__loader__).__name__,
            main.__spec__ is None,
            __name__,
            __doc__ is not None,
        ],
        "argv": sys.argv,
        "path": sys.path,
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.fileno(), sys.stdout.name],
        "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.fileno(), sys.stderr.name],
        "pickled": type(pickle.loads(pickle.dumps(Squares()))).__name__,
        "source": inspect.getsource(Squares).count("\n"),
        "neighbours": [agent.NAME, protocol.NAME],
        "signals": [repr(signal.getsignal(number)) for number in STOPS[:2]],
        "by fork": loaded("fork"),
        "by spawn": loaded("spawn"),
        "process": multiprocessing.current_process().name,
        "threads": [torch.get_num_threads(), threading.current_thread().name],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "variables": {
            name: os.environ.get(name)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        },
    }


def write_everywhere() -> None:
    """Write in every way that there is."""
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print("by print: ü")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"by the buffer\n")
    sys.stdout.buffer.flush()
    os.write(1, b"by the descriptor\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"by C")
    libc.fflush(None)
    subprocess.run(["echo", "by a subprocess"], check=True)
    logging.basicConfig(format="%(message)s")
    logging.warning("by logging")
    for _ in tqdm(range(3), desc="by tqdm", mininterval=0):
        pass
    sys.stderr.write("without an end")


def late() -> None:
    """Written after the last line."""
    time.sleep(0.2)
    print("by a thread")


if __name__ == "__main__":
    random.random()
    (FOLDER / "found.json").write_text(json.dumps(describe()))
    write_everywhere()
    atexit.register(print, "by atexit")
    threading.Thread(target=late).start()
