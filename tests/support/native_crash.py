"""A rank of the built-in trainer in which a thread of a C library crashes."""

from __future__ import annotations

import ctypes
import faulthandler
import signal

from regroup_trainer.rank import trainer
from tests.support.tiny_rank import leave_no_core

if __name__ == "__main__":
    leave_no_core()
    faulthandler.enable(all_threads=False)  # as in a rank
    trainer._prepare_process(0)
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.strlen, None)  # strlen(NULL)
    signal.pause()
