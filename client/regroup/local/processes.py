"""The processes of a local run: one coordinator, and one agent per worker."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regroup.local.log_lines import LogLines
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.environment import AgentEnvironment, CoordinatorEnvironment

ADDRESS = "127.0.0.1"
NODE_OF_COORDINATOR = "local-coordinator"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Place:
    """What the processes of one local run share."""

    job: str
    port: int
    token_file: Path
    logs: Path
    ranks: int
    """Rank processes per worker."""
    threads: int | None
    """OMP_NUM_THREADS of the workers, unless the user has set it; None: it stays unset."""
    entry: str
    """Module whose `run` is the life of a rank."""
    working_directory: Path
    """Working directory of the workers, which relative paths of a user's script start from."""
    variables: Mapping[str, str]
    """Additional environment variables of the workers."""


@dataclass
class LocalProcess:
    """A running coordinator or agent: the leader of its own process group."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    lines: LogLines
    """What it writes."""
    member: str = ""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self.popen.poll()

    def kill(self) -> None:
        """End it as a power failure would. The processes that it started die with it."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        if self.popen.poll() is None:
            self.popen.terminate()


def start_coordinator(place: Place, term: int, desired: Desired) -> LocalProcess:
    """Start the coordinator of a term."""
    environment = CoordinatorEnvironment(
        term=term,
        node=NODE_OF_COORDINATOR,
        token_file=str(place.token_file),
        address=ADDRESS,
        port=place.port,
        desired=desired.model_dump_json(),
    )
    return _start(
        f"{place.job}-c{term}", "regroup_trainer.coordinator", environment.variables(), place
    )


def start_agent(place: Place, index: int, incarnation: int) -> LocalProcess:
    """Start a worker. A replacement has the same index and another incarnation."""
    name = f"{place.job}-w{index}-{incarnation}"
    environment = AgentEnvironment(
        coordinator_url=f"http://{ADDRESS}:{place.port}",
        token_file=str(place.token_file),
        namespace="local",
        job=place.job,
        member=str(uuid.uuid4()),
        index=index,
        pod=name,
        node=f"local-{index}",
        address=ADDRESS,
        ranks=place.ranks,
        metrics_port=0,
        termination_log=str(place.logs / f"{name}.termination"),
        scratch=str(place.token_file.parent),  # a killed agent leaves its temporary folder
        entry=place.entry,
    )
    variables = {
        **_threads(place.threads),
        **place.variables,
        **environment.variables(),
    }
    process = _start(name, "regroup_trainer.agent", variables, place, place.working_directory)
    process.member = environment.member
    return process


def _threads(number: int | None) -> dict[str, str]:
    is_set = os.environ.get("OMP_NUM_THREADS")
    return {} if is_set or number is None else {"OMP_NUM_THREADS": str(number)}


def find_rank(agent: LocalProcess, rank: int) -> int | None:
    """The process id of a rank below an agent; None when it does not run."""
    return next((pid for pid in descendants(agent.popen.pid) if _name(pid) == f"rank-{rank}"), None)


def _start(
    name: str, module: str, variables: dict[str, str], place: Place, folder: Path | None = None
) -> LocalProcess:
    log = place.logs / f"{name}.log"
    with log.open("ab") as out:
        lines = LogLines(log, out.tell())
        popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module],  # a program's folder has no modules of ours
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which suspends the run
            # One prctl and one getppid, both already resolved: safe between fork and exec.
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509
        )
    return LocalProcess(name, popen, log, lines)


def dies_with(parent: int) -> Callable[[], None]:
    """A function that a new process calls between fork and exec, so that it ends with its
    parent.
    """

    def set_death_signal() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


def descendants(pid: int) -> list[int]:
    """The ids of all processes below one."""
    found = _children(pid)
    return found + [below for child in found for below in descendants(child)]


def kill_process(pid: int) -> bool:
    """Send SIGKILL; False when the process has ended before."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, as a power failure would."""
    for pid in [process.pid, *descendants(process.pid)]:
        kill_process(pid)
    process.wait()


def kill_rank_of_torchrun(agents: Iterable[int], rank: int) -> bool:
    """SIGKILL the process of a rank below one of these agents; False when it does not run."""
    below = (pid for agent in agents for pid in descendants(agent))
    return any(kill_process(pid) for pid in below if _is_rank_of_torchrun(pid, rank))


def has_rank_of_torchrun(agents: Iterable[int]) -> bool:
    """Whether a process of any rank runs below one of these agents."""
    below = (pid for agent in agents for pid in descendants(agent))
    return any(word.startswith(b"RANK=") for pid in below for word in _variables(pid))


class Killable(Protocol):
    """A process that can be killed."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    def kill(self) -> None:
        """End it as a power failure would."""


def strike(process: Killable | None) -> bool:
    """Kill the process; False when there is none that runs."""
    if process is None or process.exit_code is not None:
        return False
    process.kill()
    return True


def _children(pid: int) -> list[int]:
    try:
        texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def _is_rank_of_torchrun(pid: int, rank: int) -> bool:
    return f"RANK={rank}".encode() in _variables(pid)


def _variables(pid: int) -> list[bytes]:
    """NAME=value of the environment with which a process began; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
