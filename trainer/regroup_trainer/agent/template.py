"""The template process: it imports torch and the trainer once, and forks ranks in milliseconds.

Half of a cold start is imports. A forked rank shares them, in time and in memory. A fork copies one
thread only, so the template must never have a second one:

- It runs no tensor operation, which would start torch's thread pools.
- Its environment limits the pools that numpy and torch start at import. Ranks set their own number.
- It calls nothing of `torch.cuda`: no child of a process with a CUDA context can use the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from regroup_trainer.agent import stacks
from regroup_trainer.agent.forked_rank import RankStart, live
from regroup_trainer.agent.line_watch import LineWatch, make_watch
from regroup_trainer.agent.rank_output import IDLE_SECONDS, Lines, Stream, ignore
from regroup_trainer.agent.template_protocol import (
    EndWithRanks,
    ForkRank,
    KillRanks,
    RankEnded,
    RankStarted,
    Ready,
    ShowStacks,
    StartStore,
    StoreEnded,
    StoreStarted,
    TemplateNews,
    TerminateRanks,
    order,
)
from regroup_trainer.protocol.channel import PROGRESS_SECONDS
from regroup_trainer.protocol.commit_page import CommitPage
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.progress_pattern import Found
from regroup_trainer.protocol.rank_messages import ScriptStep
from regroup_trainer.system.child_process import die_with_parent, name_process
from regroup_trainer.system.command_line import shell_code
from regroup_trainer.system.log_lines import without_stamps
from regroup_trainer.system.program_error import excerpt

_REPORT_CHARACTERS = 4000
"""Of a rank's standard error in the report of its end."""
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.serialization.config",
)
"""What a first step needs and torch imports lazily. A test compares this list with a real step."""
NICENESS = 5
"""The template, its imports and its ranks yield to the agent, whose heartbeats must be on time.
Without privileges nobody can take it back.
"""
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Keeps libraries from starting threads at import, and CUDA checks from creating a context. Ranks
find what the user has set.
"""


def preload(entry: str) -> None:
    """Import what a rank needs up to its first step. `entry` is the module that it runs.

    Once in a process, torch looks for gloo in the metadata of all installed packages, which takes
    10 ms where these are many. nccl is left to the ranks: which one it is, their variables decide.
    """
    for module in (*PRELOADED, entry):
        importlib.import_module(module)
    importlib.import_module("torch.distributed.distributed_c10d").BackendConfig("gloo")


@dataclass
class _Rank:
    assignment: Assignment
    page: CommitPage
    streams: list[Stream] = field(default_factory=list)
    """Its standard output and its standard error."""
    watch: LineWatch | None = None
    """Finds its steps in what it writes; None where no pattern is given, or it is not rank 0."""
    killed: bool = False

    def prefix(self) -> bytes:
        """What marks its lines. A rank that goes on may get another number."""
        return f"rank {self.assignment.rank}: ".encode()

    def script_step(self, found: Found) -> ScriptStep:
        """The report of a step that it has written."""
        loss = found.loss
        return ScriptStep(
            generation=self.assignment.record.number,
            rank=self.assignment.rank,
            step=found.step,
            total=found.total,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            has_loss=loss is not None,
            time=time.time(),
        )


class Template:
    """Handles orders from `control`, forks, and reports the ends of its children."""

    def __init__(self, control: socket.socket, entry: str, directory: Path) -> None:
        self._control = control
        self._entry = entry
        self._directory = directory
        self._environment = {name: os.environ.get(name) for name in SINGLE_THREADED}
        """What the user has set of the variables that are the template's own."""
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, _Rank] = {}
        self._store: int | None = None
        self._woken, self._wake = socket.socketpair()
        self._pending = b""
        self._is_ending = False
        """Whether to end with the last rank."""

    def run(self) -> None:
        """Serve until the agent closes its end."""
        os.nice(NICENESS)
        os.environ.update(SINGLE_THREADED)
        preload(self._entry)
        gc.collect()
        gc.freeze()  # else the collector of every child would touch, and so copy, these pages
        self._watch_children()
        self._send(Ready())
        with self._selector as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while self._serve():
                pass

    def _watch_children(self) -> None:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _serve(self) -> bool:
        """Handle what is ready; False when the agent is gone, or nothing is left."""
        selected = [key for key, _ in self._selector.select(self._patience())]
        ready = {key.fileobj for key in selected}
        self._pass_on([key.data for key in selected if key.data is not None])
        self._look()
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        is_connected = self._control not in ready or self._read_orders()
        return is_connected and not (self._is_ending and not self._ranks)

    def _read_orders(self) -> bool:
        """Handle the orders that have come; False when the agent is gone."""
        chunk = self._control.recv(65536)
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._handle(line)
        return bool(chunk)

    def _handle(self, line: bytes) -> None:
        match order.validate_json(line):
            case StartStore(address=address):
                self._start_store(address)
            case ForkRank() as fork:
                self._fork_rank(fork)
            case KillRanks(retained=retained):
                self._kill({rank.rank: rank.assignment for rank in retained})
            case TerminateRanks(ranks=ranks):
                self._signal(ranks, signal.SIGTERM)
            case ShowStacks(ranks=ranks):
                self._signal(ranks, stacks.SIGNAL, stacks.answers)
            case EndWithRanks():
                self._is_ending = True

    # --- what ranks write -------------------------------------------------------------------------

    def _open_streams(self, rank: _Rank) -> list[int]:
        """Make the pipes of a rank; returns their writing ends."""
        ends = []
        on_line = rank.watch.on_line if rank.watch else ignore
        for target in (1, 2):
            source, end = os.pipe()
            os.set_blocking(source, False)
            stream = Stream(source, target, Lines(rank.prefix, on_line))
            rank.streams.append(stream)
            self._selector.register(source, selectors.EVENT_READ, stream)
            ends.append(end)
        return ends

    def _pass_on(self, streams: list[Stream]) -> None:
        """Pass on what the streams have, and the beginnings of lines that have waited for long."""
        now = time.monotonic()
        for stream in streams:
            if not stream.pump(now):
                self._close(stream)
        for stream in self._streams():
            stream.pass_on_beginning(now)

    def _patience(self) -> float | None:
        """Seconds to wait for anything; None: for ever."""
        if any(rank.watch and rank.watch.has_new for rank in self._ranks.values()):
            return PROGRESS_SECONDS
        return IDLE_SECONDS if any(stream.lines.has_begun for stream in self._streams()) else None

    def _look(self) -> None:
        """Report the steps that ranks have written."""
        now = time.monotonic()
        for rank in self._ranks.values():
            if rank.watch is not None and (found := rank.watch.look(now)) is not None:
                self._send(rank.script_step(found))

    def _streams(self) -> list[Stream]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _close(self, stream: Stream) -> None:
        self._selector.unregister(stream.source)
        stream.close()

    # --- children ---------------------------------------------------------------------------------

    def _fork(self, name: str, life: Callable[[], int]) -> int:
        """Fork a child that exits with what `life` returns."""
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        if len(threads) != 1:
            raise RuntimeError(
                f"the template has {len(threads)} threads and cannot fork safely: an import "
                "started one"
            )
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, name, life)
        return pid

    def _become_child(self, parent: int, name: str, life: Callable[[], int]) -> NoReturn:
        code = 1
        try:
            die_with_parent(parent)
            name_process(name)
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (self._control, self._woken, self._wake):
                end.close()
            for stream in self._streams():
                os.close(stream.source)
            self._selector.close()
            code = life()
        finally:
            for output in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # what a program has put there
                    output.flush()
            os._exit(code)

    def _start_store(self, address: str) -> None:
        reading, writing = os.pipe()
        self._store = self._fork("store", lambda: _serve_store(address, writing))
        os.close(writing)
        with os.fdopen(reading) as answer:
            port = answer.read()
        if port:
            self._send(StoreStarted(port=int(port)))

    def _fork_rank(self, fork: ForkRank) -> None:
        rank = _Rank(fork.assignment, CommitPage(), watch=make_watch(fork.assignment))
        ends = self._open_streams(rank)
        start = RankStart(fork, self._entry, self._directory, rank.page, self._environment)
        pid = self._fork(f"rank-{fork.assignment.rank}", lambda: live(start, ends))
        for end in ends:
            os.close(end)
        self._ranks[pid] = rank
        self._send(RankStarted(local_rank=fork.assignment.local_rank, pid=pid))

    def _kill(self, kept: dict[int, Assignment]) -> None:
        for pid, rank in self._ranks.items():
            if not rank.killed and rank.assignment.rank in kept:
                rank.assignment = kept[rank.assignment.rank]
                for stream in rank.streams:
                    stream.tail = b""  # what it wrote before explains no later end
                continue
            rank.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _signal(
        self,
        ranks: tuple[int, ...],
        number: signal.Signals,
        takes: Callable[[int], bool] = lambda _pid: True,
    ) -> None:
        for pid, rank in self._ranks.items():
            if not rank.killed and rank.assignment.rank in ranks and takes(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._report_end(*ended)

    def _report_end(self, pid: int, status: int) -> None:
        if pid == self._store:
            self._send(StoreEnded())
            return
        rank = self._ranks.pop(pid, None)
        if rank is None:
            return
        code = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        for stream in rank.streams:
            stream.drain(now)
        if rank.watch is not None and (found := rank.watch.look_now(now)) is not None:
            self._send(rank.script_step(found))
        step, committed_at = rank.page.read()
        rank.page.close()
        self._send(
            RankEnded(
                generation=rank.assignment.record.number,
                rank=rank.assignment.rank,
                exit_code=shell_code(code),
                signal=-code if code < 0 else None,
                stderr_tail=excerpt(
                    without_stamps(rank.streams[-1].tail.decode(errors="replace")),
                    _REPORT_CHARACTERS,
                ),
                killed=rank.killed,
                step=step,
                time=committed_at,
            )
        )

    def _send(self, news: TemplateNews) -> None:
        self._control.sendall(news.model_dump_json().encode() + b"\n")


def _serve_store(address: str, answer: int) -> int:
    """Serve the c10d store of generations with rank 0 in this pod; `answer` gets its port.

    c10d looks up the name of each peer that connects, in the one thread that serves all. By this
    option of the C library, this process asks no name server.
    """
    os.environ["RES_OPTIONS"] = "attempts:0"
    # torch does not list it in __all__.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    os.write(answer, str(store.port).encode())
    os.close(answer)
    while True:
        signal.pause()


def main() -> int:
    """Run the process that the agent starts; returns its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--control", type=int, required=True, help="file descriptor of the socket to the agent"
    )
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent")
    parser.add_argument(
        "--entry", required=True, help="module whose run(assignment, channel) is a rank's life"
    )
    parser.add_argument("--directory", type=Path, required=True, help="private folder of the agent")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    control = socket.socket(fileno=arguments.control)
    Template(control, arguments.entry, arguments.directory).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
