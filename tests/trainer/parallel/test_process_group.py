"""How a rank reaches its peers, and recognises their loss."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.errors import FencedError
from regroup_trainer.parallel import process_group
from regroup_trainer.parallel.process_group import interface_towards, is_peer_loss
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.ranks import Template, generation, succeeded, train_config
from tests.support.waiting import wait_until


def make_assignment(**desired: object) -> Assignment:
    """Of the only rank of a generation."""
    record = make_record(
        GenerationNumber(1, 1), (make_hello(0),), make_desired(**desired), ("Nothing", "test")
    )
    return Assignment(
        record=record.model_copy(update={"store": "127.0.0.1:1"}), rank=0, local_rank=0, channel=""
    )


def test_torch_ends_no_process_by_itself_unless_somebody_wants_it_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_group, "TCPStore", lambda *_, **__: HashStore())
    monkeypatch.setattr(process_group, "meet", lambda *_: None)
    monkeypatch.setattr(os, "environ", {"TORCH_NCCL_ENABLE_MONITORING": "1"})
    process_group.join(make_assignment())
    assert (
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"],
        os.environ["TORCH_NCCL_ENABLE_MONITORING"],
    ) == ("2", "1")


def test_only_ranks_of_a_script_give_up_a_peer_that_takes_long_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of the built-in trainer may wait for its training data, and reports that."""
    waits: list[timedelta] = []
    monkeypatch.setattr(os, "environ", {})  # joining names an interface there
    monkeypatch.setattr(process_group, "TCPStore", lambda *_, **__: HashStore())
    monkeypatch.setattr(process_group, "meet", lambda *_: None)
    monkeypatch.setattr(process_group, "_await_others", lambda *args: waits.append(args[-1]))
    process_group.join(make_assignment())
    process_group.join(make_assignment(script=("train.py",)))
    assert waits == [timedelta(days=1), timedelta(minutes=10)]


def test_a_rank_that_left_reads_nothing_and_closes_nothing_before_the_next_group() -> None:
    """A peer may not know yet that the generation is over. If its send were refused, it would wait
    for ever (gloo).
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as own,
    ):
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"not read yet")  # who closes now would refuse what comes next
            process_group.cut_off({"127.0.0.1"})
            assert own.recv(100) == b"not read yet"
            assert own.recv(100) == b""
            own.close()
            for _ in range(3):
                peer.sendall(b"taken")
            process_group.meet(make_assignment(), HashStore())
            peer.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert peer.recv(100) == b""
    dist.destroy_process_group()


def test_a_peer_that_does_not_come_finds_its_connection_idle_for_as_long_as_it_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a network that was down, it is still in the generation that the others have left."""
    with (
        socket.create_server(("127.0.0.2", 0)) as listener,
        socket.create_connection(listener.getsockname()) as own,
    ):
        peer, _ = listener.accept()
        with peer:
            process_group.cut_off({"127.0.0.2"})
            own.close()
            process_group.meet(make_assignment(), HashStore())
            dist.destroy_process_group()
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(100)
            later = time.monotonic() + 601
            monkeypatch.setattr(
                "regroup_trainer.parallel.process_group.time.monotonic", lambda: later
            )
            process_group.meet(make_assignment(), HashStore())
            assert peer.recv(100) == b""
    dist.destroy_process_group()


def test_a_group_ends_in_a_thread_of_its_own_though_a_wrapper_still_refers_to_it() -> None:
    """Whoever lets go last waits for its collectives, one of which may hang."""
    ended: list[str] = []

    class Group:
        def __del__(self) -> None:
            ended.append(threading.current_thread().name)

    wrapper = [Group()]
    process_group.end_later(list(wrapper))
    wrapper.clear()
    wait_until("its end", lambda: ended == ["end groups"])


def test_a_rank_does_not_wait_for_a_collective_that_hangs_when_it_lets_go_of_its_wrapper(
    template: Template, tmp_path: Path
) -> None:
    outcomes = template.run(
        generation(tmp_path, 2, train_config()),
        entry="tests.support.rank_faults:let_go_while_a_collective_hangs",
    )
    succeeded(outcomes)


def test_ranks_that_came_and_do_not_connect_are_lost_and_meet_in_the_next_generation(
    template: Template, tmp_path: Path
) -> None:
    """Torch names the groups of a process by their count, that of one that came to nothing too."""
    outcomes = template.run(
        generation(tmp_path, 2, train_config()),
        entry="tests.support.rank_faults:meet_after_a_failure",
    )
    succeeded(outcomes)


def test_the_interface_towards_this_machine_is_the_loopback() -> None:
    assert interface_towards("127.0.0.1") == "lo"


@pytest.mark.parametrize(
    "error",
    [
        FencedError("a newer generation has begun"),
        dist.DistNetworkError("the client socket has failed to connect"),
        dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
        RuntimeError("[...pair.cc:545] Read error [127.0.0.1]:173: Connection reset by peer"),
        RuntimeError("[...pair.cc:553] Connection closed by peer [127.0.0.1]:40771"),
        RuntimeError(
            "[...unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
        ),
    ],
)
def test_the_loss_of_a_peer_is_recognised(error: Exception) -> None:
    assert is_peer_loss(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection reset by peer"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x32 and 16x32)"),
        dist.DistBackendError("CUDA error: out of memory"),
        OSError(28, "No space left on device"),
    ],
)
def test_own_faults_are_not_blamed_on_peers(error: Exception) -> None:
    assert not is_peer_loss(error)


@pytest.fixture
def two_machines() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them: 198.18.250.1 and 198.18.250.2."""
    names = [f"regroup-test-{os.getpid()}-{index}" for index in (1, 2)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "-n",
            names[0],
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            names[1],
        )
        for index, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"198.18.250.{index}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="makes network namespaces")
def test_ranks_on_two_machines_meet_though_no_name_resolves(
    template: Template, tmp_path: Path, two_machines: list[str]
) -> None:
    def seconds_to_meet(port: int) -> float:
        (tmp_path / f"{port}").mkdir()
        outcomes = template.run(
            generation(tmp_path / f"{port}", 2, train_config()),
            entry="tests.support.rank_faults:in_own_network",
            options={"namespaces": two_machines, "store": f"198.18.250.1:{port}"},
        )
        succeeded(outcomes)
        return outcomes[0].restored.seconds

    quick = any(seconds_to_meet(port) < 4 for port in range(29400, 29403))
    assert quick, "a failed look-up of a name takes five seconds, each time"
