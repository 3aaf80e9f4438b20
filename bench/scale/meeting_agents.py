"""A process with a part of torchrun's agents, which meet at a store: `bench.scale.players` has what
it reads and writes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from bench.scale.players import Answer
from regroup.local.processes import ADDRESS

POLL_SECONDS = 0.01


@dataclass
class MeetingAgent:
    """One agent. It leaves the machine without a word."""

    settings: dict[str, Any]
    rounds: dict[int, float] = field(default_factory=dict)
    """Size of each round that it took part in -> when it had joined."""
    again: threading.Event = field(default_factory=threading.Event)
    gone: bool = False

    def run(self) -> None:
        """Meet the others, and again each time that an agent was lost."""
        store = TCPStore(ADDRESS, self.settings["port"], is_master=False, multi_tenant=True)
        total = self.settings["total"]
        handler = DynamicRendezvousHandler.from_backend(
            self.settings["run"],
            store,
            C10dRendezvousBackend(store, self.settings["run"]),
            min_nodes=total - 1,
            max_nodes=total,
            local_addr=ADDRESS,
        )
        while True:
            found = handler.next_rendezvous()
            self.rounds[found.world_size] = time.monotonic()
            self.again.wait()
            self.again.clear()
            if self.gone:
                handler._stop_heartbeats()  # as if its machine had lost power
                return


class MeetingAgents:
    """Those of this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._total = settings["total"]
        self._agents = [MeetingAgent(settings) for _ in range(settings["agents"])]

    def answer(self, do: str, seconds: float) -> Answer:
        """Execute a command."""
        if do == "form":
            for agent in self._agents:
                threading.Thread(target=agent.run, daemon=True).start()
        elif do == "lose":
            self._lose()
        else:
            return Answer(of=len(self._agents))
        return self._await(time.monotonic(), seconds)

    def _lose(self) -> None:
        """The first process loses its last agent. All others notice that their ranks fail."""
        self._total -= 1
        lost = self._agents.pop() if self._settings["first"] else None
        if lost is not None:
            lost.gone = True
            lost.again.set()
        for agent in self._agents:
            agent.again.set()

    def _await(self, begun: float, seconds: float) -> Answer:
        while True:
            joined = [agent.rounds.get(self._total) for agent in self._agents]
            arrived = [at for at in joined if at is not None]
            done = max(arrived, default=begun) if len(arrived) == len(joined) else None
            if done is not None or time.monotonic() > begun + seconds:
                return Answer(begun, done, len(arrived), len(joined))
            time.sleep(POLL_SECONDS)


def main() -> None:
    """Read the settings and then commands, until the input ends."""
    agents = MeetingAgents(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        command = json.loads(line)
        answer = agents.answer(command["do"], command["seconds"])
        print(json.dumps(asdict(answer)), flush=True)
    os._exit(0)  # the threads wait for ever


if __name__ == "__main__":
    main()
