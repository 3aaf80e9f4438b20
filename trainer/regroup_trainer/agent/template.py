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
import faulthandler
import gc
import importlib
import io
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from regroup_trainer.agent import stacks
from regroup_trainer.agent.template_protocol import (
    ForkRank,
    KillRanks,
    RankEnded,
    Ready,
    ShowStacks,
    StartStore,
    StoreEnded,
    StoreStarted,
    TemplateNews,
    TerminateRanks,
    order,
)
from regroup_trainer.protocol.channel import AgentChannel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.system.child_process import die_with_parent, name_process
from regroup_trainer.system.commit_page import CommitPage

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
RANK_NICENESS = 5
"""Ranks yield to the agent, whose heartbeats must be on time."""
TAIL_CHARACTERS = 4000
"""The end of a rank's standard error that goes into its report."""


def preload(entry: str) -> None:
    """Import what a rank needs up to its first step. `entry` is the module that it runs."""
    for module in (*PRELOADED, entry):
        importlib.import_module(module)


@dataclass
class _Rank:
    assignment: Assignment
    stderr_tail: Path
    page: CommitPage
    killed: bool = False


class Template:
    """Handles orders from `control`, forks, and reports the ends of its children."""

    def __init__(self, control: socket.socket, entry: str, directory: Path) -> None:
        self._control = control
        self._entry = entry
        self._directory = directory
        self._ranks: dict[int, _Rank] = {}
        self._store: int | None = None
        self._woken, self._wake = socket.socketpair()
        self._pending = b""

    def run(self) -> None:
        """Serve until the agent closes its end."""
        preload(self._entry)
        gc.collect()
        gc.freeze()  # else the collector of every child would touch, and so copy, these pages
        self._watch_children()
        self._send(Ready())
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while self._serve(selector):
                pass

    def _watch_children(self) -> None:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _serve(self, selector: selectors.BaseSelector) -> bool:
        """Handle what is ready; False when the agent is gone."""
        ready = {key.fileobj for key, _ in selector.select()}
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        if self._control not in ready:
            return True
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
            case KillRanks(kept=kept):
                self._kill({rank.rank: rank.assignment for rank in kept})
            case TerminateRanks(ranks=ranks):
                self._signal(ranks, signal.SIGTERM)
            case ShowStacks(ranks=ranks):
                self._signal(ranks, stacks.SIGNAL)

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
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for end in (self._control, self._woken, self._wake):
                end.close()
            code = life()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
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
        number, rank = fork.assignment.record.number, fork.assignment.rank
        path = self._directory / f"{number.term}-{number.n}-{rank}.stderr"
        page = CommitPage()
        pid = self._fork(f"rank-{rank}", lambda: _live(fork, self._entry, path, page))
        self._ranks[pid] = _Rank(fork.assignment, path, page)

    def _kill(self, kept: dict[int, Assignment]) -> None:
        for pid, rank in self._ranks.items():
            if not rank.killed and rank.assignment.rank in kept:
                rank.assignment = kept[rank.assignment.rank]
                continue
            rank.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _signal(self, ranks: tuple[int, ...], number: signal.Signals) -> None:
        for pid, rank in self._ranks.items():
            if not rank.killed and rank.assignment.rank in ranks:
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
        step, time = rank.page.read()
        rank.page.close()
        self._send(
            RankEnded(
                generation=rank.assignment.record.number,
                rank=rank.assignment.rank,
                exit_code=code if code >= 0 else 128 - code,
                signal=-code if code < 0 else None,
                stderr_tail=_read_and_remove(rank.stderr_tail),
                killed=rank.killed,
                step=step,
                time=time,
            )
        )

    def _send(self, news: TemplateNews) -> None:
        self._control.sendall(news.model_dump_json().encode() + b"\n")


def _serve_store(address: str, answer: int) -> int:
    """Serve the c10d store of generations with rank 0 in this pod; `answer` gets its port."""
    # torch does not list it in __all__.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    os.write(answer, str(store.port).encode())
    os.close(answer)
    while True:
        signal.pause()


def _live(fork: ForkRank, entry: str, stderr_tail: Path, page: CommitPage) -> int:
    """Run a rank process from start to end; returns its exit code."""
    import torch

    rank = fork.assignment.rank
    stacks.answer(stacks.stack_file(stderr_tail.parent, fork.assignment.local_rank))
    faulthandler.enable(stderr_tail.open("wb"), all_threads=False)
    os.nice(RANK_NICENESS)
    random.seed()
    torch.set_num_threads(fork.threads)
    sys.stdout = out = Prefixed(sys.stdout, f"rank {rank}: ")
    sys.stderr = errors = Prefixed(sys.stderr, f"rank {rank}: ")

    def rename_to(assignment: Assignment) -> None:
        name_process(f"rank-{assignment.rank}")
        out.prefix = errors.prefix = f"rank {assignment.rank}: "

    code = 1
    try:
        channel = AgentChannel(fork.assignment.channel, page, rename_to)
        code = int(importlib.import_module(entry).run(fork.assignment, channel))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    if code != 0:
        stderr_tail.write_text(errors.tail)
    return code


class Prefixed(io.TextIOBase):
    """A stream that marks every line with the rank that wrote it."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self.prefix = prefix
        self._at_start = True
        self.tail = ""
        """The last TAIL_CHARACTERS that were written."""

    def write(self, text: str) -> int:
        """Write `text`, with the prefix at the start of every line; returns its length."""
        self.tail = (self.tail + text)[-TAIL_CHARACTERS:]
        for line in text.splitlines(keepends=True):
            self._stream.write(self.prefix + line if self._at_start else line)
            self._at_start = line.endswith("\n")
        if self._at_start:
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor of the stream below, to which faulthandler and others write directly."""
        return self._stream.fileno()


def _read_and_remove(path: Path) -> str:
    try:
        text = path.read_text()
        path.unlink()
    except OSError:
        return ""
    return text


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
