"""A real template process: what it forks, and how it reports the ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from regroup_trainer.agent.template import NICENESS
from regroup_trainer.agent.template_protocol import (
    ForkRank,
    KillRanks,
    Order,
    RankEnded,
    RankStarted,
    Ready,
    ReassignedRank,
    ShowStacks,
    StartStore,
    StoreEnded,
    StoreStarted,
    TemplateNews,
    template_news,
)
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.protocol.rank_messages import rank_report
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.listening_ports import TABLES, listening_ports
from tests.support.processes import runs
from tests.support.waiting import wait_until

ENTRY = "tests.support.tiny_rank"
STARTUP_SECONDS = 120.0


class Parent:
    """The agent's end of a template process."""

    def __init__(self, directory: Path) -> None:
        self.control, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "regroup_trainer.agent.template",
            "--control",
            str(theirs.fileno()),
        ]
        arguments = ["--parent", str(os.getpid()), "--entry", ENTRY, "--directory", str(directory)]
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *arguments], pass_fds=[theirs.fileno()], stderr=log
            )
        theirs.close()
        self.lines = self.control.makefile("rb")
        self.ranks = socket.socket(socket.AF_UNIX)
        self.ranks.bind(str(directory / "ranks.sock"))
        self.ranks.listen()
        self.path = str(directory / "ranks.sock")

    def order(self, order: Order) -> None:
        self.control.sendall(order.model_dump_json().encode() + b"\n")

    def news(self, seconds: float = 30.0) -> TemplateNews:
        self.control.settimeout(seconds)
        return template_news.validate_json(self.lines.readline())

    def fork(self, job: str, n: int = 1) -> None:
        self.order(ForkRank(assignment=self.assignment(job, n), threads=1))

    def assignment(self, job: str, n: int) -> Assignment:
        number = GenerationNumber(1, n)
        record = make_record(number, (make_hello(0),), make_desired(job=job), ("Nothing", "test"))
        return Assignment(record=record, rank=0, local_rank=0, channel=self.path)

    def ended(self) -> RankEnded:
        while isinstance(news := self.news(), RankStarted):
            pass
        assert isinstance(news, RankEnded)
        return news

    def accept(self) -> socket.socket:
        self.ranks.settimeout(30)
        return self.ranks.accept()[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.lines.close()
        self.control.close()
        self.ranks.close()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    parent = Parent(tmp_path_factory.mktemp("template"))
    assert isinstance(parent.news(STARTUP_SECONDS), Ready)
    yield parent
    parent.close()


def children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def test_has_one_thread_after_all_imports(parent: Parent) -> None:
    assert len(list(Path(f"/proc/{parent.process.pid}/task").iterdir())) == 1


def test_a_rank_reports_and_ends_in_order(parent: Parent) -> None:
    parent.fork("finish")
    with parent.accept() as rank, rank.makefile("rb") as lines:
        kinds = [rank_report.validate_json(line).kind for line in lines]
    assert kinds == ["restored", "finished"]
    end = parent.ended()
    assert (end.exit_code, end.signal, end.killed, end.stderr_tail) == (0, None, False, "")


@pytest.mark.parametrize(
    ("job", "code", "signal_number", "words"),
    [
        ("raise", 1, None, "ValueError: the data is upside down"),
        ("complain", 3, None, "ConfigError: the data is upside down"),
        ("die", 137, 9, ""),
        ("be interrupted", 130, None, "KeyboardInterrupt"),
    ],
)
def test_a_failing_rank_is_reported_with_the_end_of_its_stderr(
    parent: Parent, job: str, code: int, signal_number: int | None, words: str
) -> None:
    parent.fork(job)
    parent.accept().close()
    end = parent.ended()
    assert (end.exit_code, end.signal) == (code, signal_number)
    assert end.stderr_tail.strip().endswith(words)


def test_what_regroup_writes_in_a_rank_names_job_and_generation(parent: Parent) -> None:
    parent.fork("complain", n=7)
    parent.accept().close()
    assert parent.ended().stderr_tail.startswith("checkpoint of step 5 failed\n")
    written = parent.log.read_text().splitlines()[-2]
    assert re.fullmatch(
        r"rank 0: [-\d]+ [:,\d]+ WARNING default/complain 1\.7: checkpoint of step 5 failed",
        written,
    )


def test_to_ask_for_stacks_ends_no_rank_that_cannot_answer(parent: Parent) -> None:
    """The signal would end it: what Python has registered is gone in another program."""
    parent.fork("become another program")
    parent.accept().close()
    started = parent.news()
    assert isinstance(started, RankStarted)
    name = Path(f"/proc/{started.pid}/comm")
    wait_until("the other program", lambda: name.read_text().strip() == "sleep", seconds=60)
    parent.order(ShowStacks(ranks=(0,)))
    parent.order(KillRanks())
    end = parent.ended()
    assert (end.signal, end.killed) == (signal.SIGKILL, True)


def test_a_rank_that_crashes_is_reported_with_its_stack(parent: Parent) -> None:
    parent.fork("crash")
    parent.accept().close()
    end = parent.ended()
    assert (end.exit_code, end.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in end.stderr_tail
    assert "tiny_rank.py" in end.stderr_tail


def test_a_killed_rank_is_marked_as_such_and_the_next_one_follows(parent: Parent) -> None:
    parent.fork("hang", n=5)
    parent.accept().close()
    parent.order(KillRanks())
    parent.fork("finish", n=6)
    first, second = sorted((parent.ended(), parent.ended()), key=lambda end: end.generation)
    parent.accept().close()
    assert (first.killed, first.signal, second.killed, second.exit_code) == (True, 9, False, 0)


def test_what_a_rank_wrote_in_a_former_generation_does_not_explain_its_end(parent: Parent) -> None:
    job = "complain, then hang"
    parent.fork(job, n=20)
    with parent.accept() as rank, rank.makefile("rb") as lines:
        assert [rank_report.validate_json(lines.readline()).kind for _ in range(2)][1] == "progress"
        parent.order(
            KillRanks(retained=(ReassignedRank(rank=0, assignment=parent.assignment(job, 21)),))
        )
        parent.order(KillRanks())
        end = parent.ended()
    assert (end.generation, end.stderr_tail) == (GenerationNumber(1, 21), "")


def test_ranks_run_in_their_own_group_with_a_name_and_lower_priority(parent: Parent) -> None:
    parent.fork("hang")
    parent.accept().close()
    pid = children(parent.process.pid)[0]
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "rank-0"
    assert os.getpgid(pid) == pid
    lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    for process in (pid, parent.process.pid):  # the template imports torch
        assert os.getpriority(os.PRIO_PROCESS, process) == lower
    parent.order(KillRanks())
    assert parent.ended().killed


@pytest.fixture
def store(parent: Parent) -> Iterator[int]:
    """The port of a store, whose end is reported."""
    parent.order(StartStore(address="127.0.0.1"))
    started = parent.news()
    assert isinstance(started, StoreStarted)
    yield started.port
    os.kill(children(parent.process.pid)[0], 9)
    assert isinstance(parent.news(), StoreEnded)


def test_the_store_serves_and_its_end_is_reported(store: int) -> None:
    socket.create_connection(("127.0.0.1", store), timeout=5).close()


def test_whoever_reaches_the_store_reads_and_writes_its_keys(store: int) -> None:
    """docs/security.md says so: there is no token, and it listens on all addresses."""
    tables = [path.read_text() for path in map(Path, TABLES) if path.exists()]
    assert store in listening_ports("".join(tables))
    rank, stranger = (TCPStore("127.0.0.1", store, is_master=False) for _ in range(2))
    rank.set("1.1/came", "2")
    assert stranger.get("1.1/came") == b"2"
    stranger.set("1.1/came", "3")
    assert rank.get("1.1/came") == b"3"


def test_nothing_survives_the_template(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    try:
        assert isinstance(parent.news(STARTUP_SECONDS), Ready)
        parent.fork("hang")
        parent.accept().close()
        (rank,) = children(parent.process.pid)
        parent.process.kill()
        wait_until("the rank to die with its template", lambda: not runs(rank))
    finally:
        parent.close()


def test_the_process_of_a_rank_is_named_by_its_local_rank(parent: Parent) -> None:
    parent.fork("hang", n=30)
    started = parent.news()
    assert isinstance(started, RankStarted)
    assert (started.local_rank, started.pid in children(parent.process.pid)) == (0, True)
    parent.accept().close()
    parent.order(KillRanks())
    parent.ended()
