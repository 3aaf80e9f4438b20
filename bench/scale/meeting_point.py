"""Subject `torchrun`: the store of its c10d rendezvous, and agents of its own code that meet there.

The agents are threads of at most four processes, since the rendezvous is Python: what they take of
the machine is in `simulation_cpu_share`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from subprocess import Popen
from typing import ClassVar

from bench.scale.players import Players
from bench.scale.scale_course import Report, ScaleSubject
from bench.scale.settings import ScaleSize
from regroup.local.processes import ADDRESS, dies_with
from regroup_operator.render.torchrun_commands import store_command
from regroup_trainer.system.machine_address import free_port

PROCESSES = 4
RUN = "bench-1"
AGENTS = "bench.scale.meeting_agents"


class MeetingPoint(ScaleSubject):
    """A store, and agents with the settings that torchrun has by default.

    Its agents end when the store does, so that there is nothing to resync.
    """

    can_resync: ClassVar[bool] = False

    def __init__(self, folder: Path, size: ScaleSize, report: Report) -> None:
        super().__init__(folder, size, report)
        self._port = free_port()

    def start(self) -> Popen[bytes]:
        """Start the store."""
        with (self.folder / "store.log").open("ab") as log:
            return Popen(
                store_command(sys.executable, RUN, self._port),
                stdout=log,
                stderr=log,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - as the coordinator
            )

    def players(self) -> Players:
        """Each process plays a part of the agents."""
        total, many = self.size.agents, min(PROCESSES, self.size.agents)
        shares = [total // many + (number < total % many) for number in range(many)]
        settings = [
            {"port": self._port, "run": RUN, "agents": share, "total": total, "first": not number}
            for number, share in enumerate(shares)
        ]
        return Players([sys.executable, "-m", AGENTS], settings)

    async def answers(self) -> bool:
        """Whether it listens."""
        with socket.socket() as probe:
            return probe.connect_ex((ADDRESS, self._port)) == 0
