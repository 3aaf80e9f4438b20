"""Programs: run to their end, or started as long-running processes.

A long-running process is identified by its process id and its start time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devcluster import cgroups
from devcluster.errors import CommandFailedError, DevclusterError
from devcluster.waiting import wait_until

OWNER_VARIABLE = "REGROUP_DEVCLUSTER"
"""Environment variable of every process of a cluster. It holds the state folder, by which `down`
finds them.
"""


def run(
    argv: Sequence[str | Path], stdin: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run a program to its end and return its standard output.

    Raises CommandFailedError with its error output when it fails.
    """
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except FileNotFoundError as missing:
        raise DevclusterError(
            f"The program {command[0]} is missing: run `python -m devcluster build`."
        ) from missing
    if done.returncode != 0:
        raise CommandFailedError(shlex.join(command), done.returncode, done.stderr or done.stdout)
    return done.stdout


@dataclass(frozen=True)
class Launch:
    """How to start a long-running program."""

    name: str
    """Component name, such as kubelet-n1. Its log and its pid file have this name."""
    argv: tuple[str | Path, ...]
    namespace: str = ""
    """Name of the network namespace. Empty: the caller's."""
    cgroup: str = ""
    """Control group, relative to the hierarchies' roots. Empty: the caller's."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Processes:
    """The long-running programs of one cluster, by component name."""

    state: Path

    def log(self, name: str) -> Path:
        """The log file of a component."""
        return self.state / "log" / f"{name}.log"

    def start(self, launch: Launch) -> None:
        """Start a program that outlives this process. Does nothing when it already runs."""
        if self.pid(launch.name) is not None:
            return
        self.log(launch.name).parent.mkdir(parents=True, exist_ok=True)
        argv = [str(part) for part in launch.argv]
        if launch.namespace:
            # `ip netns exec` would mount a new /sys, which hides the control groups.
            argv = ["nsenter", f"--net=/run/netns/{launch.namespace}", *argv]
        if launch.cgroup:
            argv = [*cgroups.joining(launch.cgroup), *argv]
        log = str(self.log(launch.name))
        pid = os.posix_spawnp(
            argv[0],
            argv,
            {**os.environ, **launch.environment, OWNER_VARIABLE: str(self.state)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        pid_file = self._pid_file(launch.name)
        pid_file.parent.mkdir(parents=True, exist_ok=True)
        pid_file.write_text(f"{pid} {start_time(pid)}")

    def pid(self, name: str) -> int | None:
        """The process id of a component. None when it does not run. A recycled id is recognised."""
        try:
            pid, started = self._pid_file(name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == int(started) else None

    def names(self) -> list[str]:
        """The names of the started components, running or not."""
        return sorted(path.stem for path in (self.state / "run").glob("*.pid"))

    def require_running(self, name: str) -> None:
        """Raise a DevclusterError with the end of its log when a started component has ended."""
        if self.pid(name) is None:
            lines = self.log(name).read_text(errors="replace").splitlines()
            raise DevclusterError(
                f"{name} ended. The end of {self.log(name)}: " + "\n".join(lines[-3:])
            )

    def kill(self, name: str) -> None:
        """SIGKILL a component if it runs, and wait until it has ended."""
        pid = self.pid(name)
        if pid is not None:
            kill(pid)
            wait_until(lambda: self.pid(name) is None, 10, f"The end of {name}")

    def marked_processes(self) -> Iterator[int]:
        """The ids of all processes with this cluster's mark in their environment."""
        mark = f"{OWNER_VARIABLE}={self.state}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and mark in _environment(entry):
                yield int(entry.name)

    def _pid_file(self, name: str) -> Path:
        return self.state / "run" / f"{name}.pid"


def read_proc(pid: int, name: str) -> str:
    """A file of /proc/PID; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of a process. None when there is none, or only a
    zombie. A killed process whose other threads have not ended is none yet: it still has its ports.
    """
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    return None if not fields or (fields[0] in "ZX" and not _runs(pid)) else int(fields[19])


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used since its start. Raises LookupError when it is gone."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    if not fields:
        raise LookupError(f"process {pid} is gone")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, kind: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
    """The memory that a process has in use, or the most that it had (VmHWM). Raises LookupError
    when it is gone.
    """
    for line in read_proc(pid, "status").splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"process {pid} is gone")


def _runs(pid: int) -> bool:
    """Whether threads besides the first are there."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208
    except OSError:
        return False


def kill(pid: int) -> None:
    """SIGKILL a process. It may have ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        return


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
