"""Warm coordinators and workers for local runs, and the store and agents of torchrun: forks of one
process that has imported torch.

A worker that starts cold imports torch for three seconds of a core, and a local run starts three
and more. `python -m tests.support.warm_workers` is the process that is forked, `WarmWorkers` its
handle. A fork has the session, folder, environment, log and children that `regroup.local` gives to
a process that it starts; only the imports are shared.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn, cast

from regroup.local.log_lines import LogLines
from regroup.local.processes import LocalProcess, Place
from regroup_trainer.agent import template, template_process
from regroup_trainer.protocol.environment import RANK_ENTRY
from regroup_trainer.system.child_process import die_with_parent

AGENT = "regroup_trainer.agent"
COORDINATOR_PROCESS = "regroup_trainer.coordinator.serving.coordinator_process"
TORCHRUN = "torch.distributed.run"
_LONGEST = 1 << 17
"""Bytes of a request."""
_ENDED_SECONDS = 60.0


class WarmProcess:
    """What a local run needs of `subprocess.Popen`, for a child of the warm process."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self._ended = ended
        self._descriptor = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. Raises TimeoutExpired."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when it has ended, its exit code read or not."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(self._ended.recv(64) or -signal.SIGKILL)
            self._ended.close()
            os.close(self._descriptor)
        return self.returncode


@dataclass
class WarmWorkers:
    """The process that forks warm coordinators and agents; all of them end with it."""

    _process: subprocess.Popen[bytes] = field(init=False)
    _requests: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm_workers", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **template.SINGLE_THREADED},
            )

    def start(
        self,
        name: str,
        module: str,
        variables: dict[str, str],
        place: Place,
        folder: Path | None = None,
    ) -> LocalProcess:
        """Stand in for `regroup.local.processes._start`."""
        log = place.logs / f"{name}.log"
        life = {"module": module, "arguments": [module]}
        with log.open("ab") as out:
            lines = LogLines(log, out.tell())
            forked = self._fork(life, folder, {**os.environ, **variables}, out, out)
        process = cast("subprocess.Popen[bytes]", forked)
        return LocalProcess(name, process, log, lines)

    def popen(
        self,
        command: list[str],
        *,
        cwd: Path,
        env: dict[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        **_same: object,
    ) -> WarmProcess:
        """Stand in for `subprocess.Popen` of `python -c PROGRAM ARGUMENTS`."""
        _, option, program, *arguments = command
        assert option == "-c"
        life = {"program": program, "arguments": [option, *arguments]}
        return self._fork(life, cwd, env, stdout, stderr)

    def _fork(
        self,
        life: dict[str, Any],
        folder: Path | None,
        environment: dict[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> WarmProcess:
        request = {**life, "folder": str(folder or Path.cwd()), "environment": environment}
        message = json.dumps(request).encode()
        ended, theirs = socket.socketpair()
        with theirs:
            descriptors = [stdout.fileno(), stderr.fileno(), theirs.fileno()]
            socket.send_fds(self._requests, [message], descriptors)
        return WarmProcess(int(self._requests.recv(64)), ended)

    def close(self) -> None:
        """End the process and all its forks."""
        self._requests.close()
        self._process.wait(_ENDED_SECONDS)


# --- in the warm process --------------------------------------------------------------------------


class _Forks:
    """Forks what is asked for, and reports the ends of the forks."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until nobody can ask any more."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(cast(int, key.fileobj), *key.data)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._requests, _LONGEST, 3)
        if not message:
            return False
        *outputs, ended = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._close()
            os.close(ended)
            _live(lambda: _run(json.loads(message), outputs, parent))
        for output in outputs:
            os.close(output)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ended))
        self._requests.send(str(pid).encode())
        return True

    def _reap(self, descriptor: int, pid: int, ended: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with socket.socket(fileno=ended) as report:
            report.send(str(code).encode())

    def _close(self) -> None:
        """A fork keeps nothing that belongs to the others."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                os.close(cast(int, key.fileobj))
                os.close(key.data[1])
        self._selector.close()
        self._requests.close()


def _live(life: Callable[[], object]) -> NoReturn:
    """End the process with the code that `life` returns or exits with."""
    code = 1
    try:
        code = _exit_code(life)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(life: Callable[[], object]) -> int:
    try:
        return int(cast(int, life()) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        return 1


def _run(request: dict[str, Any], outputs: list[int], parent: int) -> object:
    """Become the process that `python -m MODULE` or `python -c PROGRAM` would be."""
    os.setsid()
    die_with_parent(parent)
    os.chdir(request["folder"])
    for number, target in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(target, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    del sys.path[0]  # as with -P
    sys.argv = request["arguments"]
    random.seed()
    if "program" in request:
        _be_program(request["program"])
        return 0
    if request["module"] == AGENT:
        _use_warm_template()
    return importlib.import_module(f"{request['module']}.__main__").main()


def _be_program(text: str) -> None:
    cast(TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)  # PYTHONUNBUFFERED is set
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<string>", "exec"), vars(main))


class _WarmTemplate:
    """What an agent needs of `subprocess.Popen`, for its template: a fork that waits for its
    command line.
    """

    def __init__(self) -> None:
        self._agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._agent.close()
            _live(lambda: _be_template(theirs, parent))
        theirs.close()

    def start(self, command: list[str], **options: Any) -> _WarmTemplate:
        """Stand in for `subprocess.Popen`."""
        arguments = command[command.index("--control") :]
        socket.send_fds(self._agent, [json.dumps(arguments).encode()], options["pass_fds"])
        return self

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def _use_warm_template() -> None:
    """Fork the template of this agent now, while the agent has one thread."""
    popen = _WarmTemplate().start
    vars(template_process)["subprocess"] = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)


def _be_template(orders: socket.socket, parent: int) -> int:
    die_with_parent(parent)
    message, descriptors, _, _ = socket.recv_fds(orders, _LONGEST, 1)
    if not message:
        return 0
    orders.close()
    arguments = json.loads(message)
    arguments[arguments.index("--control") + 1] = str(descriptors[0])
    sys.argv = [AGENT, *arguments]
    return template.main()


def main() -> None:
    """Import what coordinators, agents, ranks and torchrun need, then fork."""
    for module in (f"{AGENT}.agent", COORDINATOR_PROCESS, TORCHRUN):
        importlib.import_module(module)
    template.preload(RANK_ENTRY)
    gc.collect()
    gc.freeze()  # forks would copy every page whose reference counts the collector touches
    _Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    os._exit(0)  # without the clean-up of an interpreter that has loaded torch


if __name__ == "__main__":
    main()
