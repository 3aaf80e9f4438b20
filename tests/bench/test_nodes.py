"""Nodes of network namespaces: what runs there can be killed, frozen, and cut off one way or both."""

from __future__ import annotations

import os
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
            print("heard", len(line.recv(16)), flush=True)
        except OSError:
            continue
"""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(2) as made:
        yield made
    assert not list(Path("/run/netns").glob(f"rg-b{os.getpid()}-*"))


def talk(nodes: Nodes, folder: Path) -> tuple[Path, Path]:
    """Two nodes that tell each other something all the time; what they hear is in files."""
    logs = folder / "1", folder / "2"
    for node, log in enumerate(logs, 1):
        arguments = [nodes.address(node), nodes.address(3 - node)]
        nodes.start(node, [sys.executable, "-c", TALK, *arguments], {}, log)
    for log in logs:
        wait_until(partial(hears, log), 20, "The first words")
    return logs


def hears(log: Path) -> bool:
    """Whether something comes in within half a second."""
    before = log.stat().st_size
    try:
        wait_until(lambda: log.stat().st_size > before, 0.5, "Another word")
    except DeadlineError:
        return False
    return True


def test_a_deaf_node_is_heard_but_hears_nothing(nodes: Nodes, tmp_path: Path) -> None:
    first, second = talk(nodes, tmp_path)
    nodes.deafen(1)
    wait_until(lambda: not hears(first), 10, "The silence")
    assert hears(second)


def test_a_cut_node_neither_hears_nor_is_heard_until_it_is_plugged_in(nodes: Nodes, tmp_path: Path) -> None:
    first, second = talk(nodes, tmp_path)
    nodes.cut(1)
    wait_until(lambda: not hears(first) and not hears(second), 10, "The silence")
    nodes.plug(1)
    wait_until(lambda: hears(first) and hears(second), 20, "The first words after it")


def test_a_frozen_node_says_nothing_but_lives(nodes: Nodes, tmp_path: Path) -> None:
    _, second = talk(nodes, tmp_path)
    nodes.freeze(1)
    wait_until(lambda: not hears(second), 10, "The silence")
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
    program = "import socket, sys; print(socket.getnameinfo((sys.argv[1], 1), socket.NI_NAMEREQD)[0])"
    for form in ("", "::ffff:"):
        assert nodes.start(2, [sys.executable, "-c", program, form + nodes.address(1)], {}, log).wait(20) == 0
    assert log.read_text().split() == [nodes.address(1)] * 2
