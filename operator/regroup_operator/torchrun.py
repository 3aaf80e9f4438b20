"""Stock torchrun: the command lines of its agents and of the store where they meet; for pods and local processes alike.

By default the first worker hosts the store, a dead agent leaves the rendezvous after 15 s, and a new world may read the
addresses of the last one: the settings mend these three. bench/recovery.py compares torchrun with and without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.api import TrainingJobSpec
from regroup_operator.launcher import Script

STORE_PORT = 29400
SETTINGS = (
    "is_host=0,join_timeout=600,last_call_timeout=1,close_timeout=5,"
    "read_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
)
"""Of the rendezvous: no worker hosts the store, so that any of them may die; a dead one is noticed after 3 s."""
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A store for each world: with the shared one a new world reads the addresses of the last one."""
UNLIMITED_RESTARTS = 1_000_000
_STORE_PROGRAM = """
import signal, sys
ends = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
from torch.distributed import TCPStore
store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("the store listens on port", store.port, flush=True)
signal.sigwait(ends)
""".strip()
"""Runs in any image that has torch. As process 1 of a container it must wait for SIGTERM itself."""


@dataclass(frozen=True)
class Rendezvous:
    """What an agent needs to know to meet the others."""

    endpoint: str
    """host:port of the store."""
    identity: str
    """Of the attempt: agents of different ones never meet."""
    nnodes: str
    """Fewest and most agents, `min:max`."""
    ranks: int
    """Per agent."""
    max_restarts: int
    """How often an agent starts its ranks again after one failed; -1: always."""
    address: str
    """Under which other agents reach this one."""


def nnodes(spec: TrainingJobSpec) -> str:
    """The bounds of the world, as torchrun takes them."""
    return f"{spec.min_replicas}:{spec.max_replicas}"


def world_generation(term: int) -> str:
    """The number of a world, for the status: `<attempt>.0`, since nobody hears which one torchrun is at."""
    return f"{term}.0"


def agent_command(script: Script, meeting: Rendezvous) -> list[str]:
    """The command line of an agent."""
    restarts = UNLIMITED_RESTARTS if meeting.max_restarts < 0 else meeting.max_restarts
    return [
        script.interpreter,
        "-m",
        "torch.distributed.run",
        f"--nnodes={meeting.nnodes}",
        f"--nproc-per-node={meeting.ranks}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={meeting.endpoint}",
        f"--rdzv-id={meeting.identity}",
        f"--rdzv-conf={SETTINGS}",
        f"--max-restarts={restarts}",
        f"--local-addr={meeting.address}",
        *script.arguments,
    ]


def store_command(interpreter: str, port: int = STORE_PORT) -> list[str]:
    """The command line of the store."""
    return [interpreter, "-c", _STORE_PROGRAM, str(port)]
