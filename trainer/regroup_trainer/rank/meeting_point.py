"""Where the ranks of a script meet: rank 0 chooses a free port for the program's own store, and
says at which one it meets the others.

The store of the generation would still hold keys of older generations. A program may choose another
port, the same for all. With a port each, its ranks would wait for each other in vain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.system.machine_address import free_port

_STORE_TIMEOUT = timedelta(seconds=60)
_LONGEST_WAIT = timedelta(days=1)
"""For rank 0 to meet the others. c10d waits for minutes."""
_PORT_KEY = "master_port"
_MET_KEY = "meets_at"


@dataclass
class MeetingPoint:
    """The port of a program's own store, as one rank sees it."""

    port: int
    rank: int
    store: Store | None = None
    """Of the generation; None where no program meets by the port."""
    refuse: Callable[[str], object] = print
    """Called in a thread of its own with what is wrong."""
    _has_met: bool = False

    @classmethod
    def agree(cls, assignment: Assignment) -> Self:
        """Agree on a free port of rank 0. Raises c10d's errors when the other ranks do not come.

        Where states live on in ranks, all programs use a Session and need no port: any will do.
        """
        record, rank = assignment.record, assignment.rank
        host, port = record.store.rsplit(":", 1)
        if record.restored_from == "Peers":
            return cls(int(port), rank)
        connection = TCPStore(host, int(port), None, False, _STORE_TIMEOUT)
        store = PrefixStore(f"{record.number}/script", connection)
        if rank == 0:
            store.set(_PORT_KEY, str(free_port()))
        return cls(int(store.get(_PORT_KEY)), rank, store)

    def meet(self, port: int) -> None:
        """Say that this rank now meets the others at a port, or compare it with that of rank 0.
        Only the first time counts.
        """
        if self._has_met or self.store is None:
            return
        self._has_met = True
        if self.rank == 0:
            self.store.set(_MET_KEY, str(port))
        else:
            compare = threading.Thread(target=self._compare, args=(self.store, port), daemon=True)
            compare.start()

    def _compare(self, store: Store, port: int) -> None:
        try:
            store.wait([_MET_KEY], _LONGEST_WAIT)
            of_rank_0 = int(store.get(_MET_KEY))
        except RuntimeError:  # the generation is over
            return
        if of_rank_0 != port:
            self.refuse(
                f"rank {self.rank} meets the others at port {port}, and rank 0 at {of_rank_0}: "
                "leave MASTER_PORT as it is set, or give all ranks the same port"
            )
