"""Nodes of network namespaces: what runs there can be killed, frozen, and cut off one way or
both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.nodes import Nodes
from devcluster.errors import DeadlineError
from devcluster.waiting import wait_until

pytestmark = pytest.mark.cluster

TALK = """
import socket, sys, time
own, peer = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
    line.bind((own, 4000))
    line.settimeout(0.02)
    while True:
        try:
            line.sendto(b"hello", (peer, 4000))
            print("received", len(line.recv(16)), flush=True)
        except OSError:
            continue
"""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(2) as made:
        yield made
    assert not list(Path("/run/netns").glob(f"rg-b{os.getpid()}-*"))


def talk(nodes: Nodes, folder: Path) -> tuple[Path, Path]:
    """Two nodes that send each other messages all the time; what they receive is in files."""
    logs = folder / "1", folder / "2"
    for node, log in enumerate(logs, 1):
        arguments = [nodes.address(node), nodes.address(3 - node)]
        nodes.start(node, [sys.executable, "-c", TALK, *arguments], {}, log)
    for log in logs:
        wait_until(partial(receives, log), 20, "The first messages")
    return logs


def receives(log: Path) -> bool:
    """Whether something comes in within half a second."""
    before = log.stat().st_size
    try:
        wait_until(lambda: log.stat().st_size > before, 0.5, "Another message")
    except DeadlineError:
        return False
    return True


def test_nodes_that_are_made_at_once_have_other_addresses() -> None:
    program = (
        "import sys; from bench.nodes import Nodes\n"
        "with Nodes(1) as nodes: print(nodes.address(1), flush=True); sys.stdin.read()"
    )
    made = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    addresses = [process.stdout.readline() for process in made if process.stdout]
    for process in made:
        process.communicate("", timeout=60)
    assert len(set(addresses)) == len(made)
    assert [process.returncode for process in made] == [0] * len(made)


def test_a_node_with_cut_input_sends_but_receives_nothing(nodes: Nodes, tmp_path: Path) -> None:
    first, second = talk(nodes, tmp_path)
    nodes.cut_input(1)
    wait_until(lambda: not receives(first), 10, "The end of contact")
    assert receives(second)


def test_a_cut_node_neither_receives_nor_sends_until_it_is_plugged_in(
    nodes: Nodes, tmp_path: Path
) -> None:
    first, second = talk(nodes, tmp_path)
    nodes.cut(1)
    wait_until(lambda: not receives(first) and not receives(second), 10, "The end of contact")
    nodes.plug(1)
    wait_until(lambda: receives(first) and receives(second), 20, "The first messages after it")


def test_a_frozen_node_sends_nothing_but_its_process_lives(nodes: Nodes, tmp_path: Path) -> None:
    _, second = talk(nodes, tmp_path)
    nodes.freeze(1)
    wait_until(lambda: not receives(second), 10, "The end of contact")
    assert len(nodes.processes(1)) == 1


def test_a_killed_node_is_empty_and_the_others_are_not(nodes: Nodes, tmp_path: Path) -> None:
    talk(nodes, tmp_path)
    nodes.kill(1)
    assert nodes.processes(1) == {}
    assert len(nodes.processes(2)) == 1


def test_a_frozen_node_can_be_killed(nodes: Nodes, tmp_path: Path) -> None:
    talk(nodes, tmp_path)
    nodes.freeze(1)
    nodes.kill(1)
    assert nodes.processes(1) == {}


def test_nothing_leaves_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=5)"
    assert nodes.start(1, [sys.executable, "-c", program], {}, log).wait(20) == 1
    assert "unreachable" in log.read_text()


def test_a_process_is_found_by_its_name(nodes: Nodes, tmp_path: Path) -> None:
    program = "open('/proc/self/comm', 'w').write('rank-7'); import time; time.sleep(60)"
    process = nodes.start(2, [sys.executable, "-c", program], {}, tmp_path / "log")
    wait_until(lambda: nodes.find("rank-7") is not None, 20, "The start of the process")
    assert nodes.find("rank-7") == (2, process.pid)
    assert nodes.find("rank-8") is None


def test_the_name_of_a_host_is_its_address(nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    assert nodes.start(2, [sys.executable, "-c", program], {}, log).wait(20) == 0
    assert log.read_text().strip() == nodes.address(2) != nodes.address(1)


def test_the_hosts_know_each_other_without_a_name_server(nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import socket, sys; print(socket.getnameinfo((sys.argv[1], 1), socket.NI_NAMEREQD)[0])"
    )
    for form in ("", "::ffff:"):
        assert (
            nodes.start(2, [sys.executable, "-c", program, form + nodes.address(1)], {}, log).wait(
                20
            )
            == 0
        )
    assert log.read_text().split() == [nodes.address(1)] * 2
