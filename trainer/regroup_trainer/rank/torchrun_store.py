"""The store where the agents of stock torchrun meet, and which sees when they wait in vain.

An agent whose ranks have ended well waits for the others to end, up to five minutes, and never
meets them again. If one of them has failed, it wants to meet anew, and waits too. Nobody but the
store sees both. It then ends with WAITS_IN_VAIN, and with it the attempt. Where enough others are
left, they meet without the ones that ended, and the attempt goes on.

`protocol/torchrun_programs.py` ships the text of this module to images that may not have Regroup.
"""

from __future__ import annotations

import base64
import pickle
import signal
import sys
from typing import Any

from regroup_trainer.protocol.exit_codes import WAITS_IN_VAIN

_ENDS = {signal.SIGTERM, signal.SIGINT}
_POLL_SECONDS = 1.0
_SIGHTINGS = 6
"""How often in a row somebody has to wait: agents need some seconds to notice who has left."""


def serve() -> None:
    """Host a store until a signal: `sys.argv` has its port and the identity of the attempt.

    As process 1 of a container it must handle SIGTERM itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    print("INFO the store listens on port", store.port, flush=True)  # of no interest at its end
    sightings = 0
    while signal.sigtimedwait(_ENDS, _POLL_SECONDS) is None:
        sightings = sightings + 1 if _waits_in_vain(store, sys.argv[2]) else 0
        if sightings == _SIGHTINGS:
            print("a worker waits to train again with others that have ended well", flush=True)
            sys.exit(WAITS_IN_VAIN)


def _waits_in_vain(store: Any, identity: str) -> bool:
    """Whether an agent waits to meet others of which one has ended well.

    The keys are torch's own (2.15). If another version has others, the agents' time-outs decide.
    """
    key = f"torch.rendezvous.{identity}"
    try:
        if not store.check([key]):
            return False
        state = pickle.loads(base64.b64decode(store.get(key)))
    except Exception:
        return False
    waits_for = state.round if state.wait_list else state.round - 1
    barrier = f"{key}.{waits_for}/torchelastic/agent/terminal_state"
    some, everybody = (
        store.check([f"{barrier}/{name}"]) for name in ("num_members", "last_member")
    )
    return bool(some and not everybody and (state.wait_list or not state.complete))
