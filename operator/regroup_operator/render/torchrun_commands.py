"""Stock torchrun: the command lines of its agents and of the store where they meet, for pods and
for local processes.

By default the first worker hosts the store, a dead agent leaves the rendezvous after 15 s, and a
new process group may read the addresses of the last one. The settings here correct all three.
bench/recovery.py compares torchrun with and without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.api.launcher_flags import LaunchFlags
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import Script
from regroup_trainer.protocol.desired import UNLIMITED_RESTARTS
from regroup_trainer.protocol.torchrun_programs import (
    MESSAGE_VARIABLE,
    PROGRAM_VARIABLE,
    RUN_RANK,
    rank_program,
    store_program,
)

STORE_PORT = 29400
SETTINGS = (
    "is_host=0,join_timeout=600,last_call_timeout=1,close_timeout=5,"
    "read_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
)
"""Settings of the rendezvous. No worker hosts the store, so that any worker may die. A dead one is
noticed after 3 s.
"""
TORCHRUN = f"""\
import os, sys
sys.path[:] = filter(None, sys.path)
from torch.distributed.run import main
try:
    main()
except Exception as error:
    if type(error).__name__ in ("DistStoreError", "RendezvousClosedError"):
        open(os.environ.get("{MESSAGE_VARIABLE}", "/dev/termination-log"), "w").close()
    raise
"""
"""torchrun, without the modules of the working directory: a select.py there would end it.

Where it cannot meet the others, what an earlier failure of its ranks has left in the last message
is not why it ends.
"""
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""One store per process group. With a shared store a new group reads the addresses of the last one.
"""


@dataclass(frozen=True)
class Rendezvous:
    """What an agent needs to know to meet the others."""

    endpoint: str
    """host:port of the store."""
    identity: str
    """Identity of the attempt. Agents of different attempts never meet."""
    nnodes: str
    """Fewest and most agents, `min:max`."""
    ranks: int
    """Ranks per agent."""
    max_restarts: int
    """How often an agent restarts its ranks after one failed; -1: without limit."""
    address: str
    """Address under which other agents reach this one."""


def nnodes(spec: TrainingJobSpec) -> str:
    """The bounds of the number of workers, as torchrun takes them: `min:max`."""
    return f"{spec.min_replicas}:{spec.max_replicas}"


def rendezvous_generation(term: int) -> str:
    """The number for the status, `<attempt>.0`: torchrun does not report how often its agents have
    met.
    """
    return f"{term}.0"


def agent_command(script: Script, meeting: Rendezvous) -> list[str]:
    """Stock torchrun for one worker, with the script behind its flags."""
    flags = script.flags
    rank = () if flags.has_output else ("--no-python", script.interpreter, "-u", RUN_RANK)
    restarts = UNLIMITED_RESTARTS if meeting.max_restarts < 0 else meeting.max_restarts
    return [
        script.interpreter,
        "-c",
        TORCHRUN,
        f"--nnodes={meeting.nnodes}",
        f"--nproc-per-node={meeting.ranks}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={meeting.endpoint}",
        f"--rdzv-id={meeting.identity}",
        f"--rdzv-conf={SETTINGS}",
        f"--max-restarts={restarts}",
        f"--local-addr={meeting.address}",
        *([f"--role={flags.role}"] if flags.role != LaunchFlags.role else []),
        *flags.stock,
        *rank,
        *script.arguments,
    ]


def agent_variables(script: Script) -> dict[str, str]:
    """The environment variables that the command of an agent relies on."""
    return OWN_STORES | ({} if script.flags.has_output else {PROGRAM_VARIABLE: rank_program()})


def store_command(interpreter: str, identity: str, port: int = STORE_PORT) -> list[str]:
    """The command line of the store of an attempt."""
    return [interpreter, "-c", store_program(), str(port), identity]
