"""Programs: run to their end, or started in a session of their own and found again by process id and start time."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devcluster import cgroups
from devcluster.errors import CommandFailedError, DevclusterError
from devcluster.waiting import wait_until

OWNER_VARIABLE = "REGROUP_DEVCLUSTER"
"""In the environment of every process that a cluster starts: its state folder. `down` recognises its own by it."""


def run(argv: Sequence[str | Path], stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return its standard output; raise CommandFailedError with what it said otherwise."""
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
        raise DevclusterError(f"The program {command[0]} is not there: run `python -m devcluster build`.") from missing
    if done.returncode != 0:
        raise CommandFailedError(shlex.join(command), done.returncode, done.stderr or done.stdout)
    return done.stdout


@dataclass(frozen=True)
class Launch:
    """How to start a program that stays."""

    name: str
    """Component name, such as kubelet-n1; also names its log and its pid file."""
    argv: tuple[str | Path, ...]
    namespace: str = ""
    """Name of the network namespace to start it in; empty: the caller's."""
    cgroup: str = ""
    """Control group to start it in, relative to the hierarchies' roots; empty: the caller's."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Processes:
    """The long-running programs of one cluster, by component name."""

    state: Path

    def log(self, name: str) -> Path:
        """The file with the output of a component."""
        return self.state / "log" / f"{name}.log"

    def start(self, launch: Launch) -> None:
        """Start a program that outlives us; does nothing when it runs already."""
        if self.pid(launch.name) is not None:
            return
        self.log(launch.name).parent.mkdir(parents=True, exist_ok=True)
        argv = [str(part) for part in launch.argv]
        if launch.namespace:
            # Not `ip netns exec`: it would mount a new /sys, which hides the control groups.
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
        """The process id of a component, or None when it does not run (a recycled id is recognised)."""
        try:
            pid, started = self._pid_file(name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == int(started) else None

    def names(self) -> list[str]:
        """Components that have been started, running or not."""
        return sorted(path.stem for path in (self.state / "run").glob("*.pid"))

    def must_run(self, name: str) -> None:
        """Raise a DevclusterError with the end of its log when a component that was started has ended."""
        if self.pid(name) is None:
            lines = self.log(name).read_text(errors="replace").splitlines()
            raise DevclusterError(f"{name} ended. The end of {self.log(name)}: " + "\n".join(lines[-3:]))

    def kill(self, name: str) -> None:
        """SIGKILL a component, if it runs, and wait until it is gone."""
        pid = self.pid(name)
        if pid is not None:
            kill(pid)
            wait_until(lambda: self.pid(name) is None, 10, f"The end of {name}")

    def strays(self) -> Iterator[int]:
        """Processes that carry this cluster's mark in their environment."""
        mark = f"{OWNER_VARIABLE}={self.state}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and mark in _environment(entry):
                yield int(entry.name)

    def _pid_file(self, name: str) -> Path:
        return self.state / "run" / f"{name}.pid"


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of a process; None when there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kill(pid: int) -> None:
    """SIGKILL a process; it may have ended already."""
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
