"""What an address means to this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from regroup_trainer.system import machine_address
from regroup_trainer.system.machine_address import free_port, free_ports, is_here, is_loopback


@pytest.mark.parametrize(
    "host",
    [
        *["localhost", "LOCALHOST ", "localhost.", "localhost.localdomain", "ip6-localhost"],
        *["ip6-loopback", "a.localhost", "127.0.0.1", "127.0.0.2", "127.1", "0.0.0.0", "::1"],
        *["[::1]", "::", "::1%lo", "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1"],
    ],
)
def test_an_address_by_which_every_machine_means_itself_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "worker-0.localhost.svc", "1", "\0", "a" * 9999],
)
def test_another_machine_may_be_met_there(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(("host", "here"), [("127.0.0.3", True), ("203.0.113.7", False)])
def test_a_machine_knows_its_own_addresses(host: str, here: bool) -> None:
    assert is_here(host) is here


@pytest.mark.parametrize("host", ["\0", "a" * 300, "\ud800"])
def test_what_is_no_name_is_not_decided(host: str) -> None:
    assert not is_here(host)


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert not any(int(first) <= port <= int(last) for port in free_ports(50))


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        used = taken.getsockname()[1]
        monkeypatch.setattr(machine_address._random, "sample", lambda _ports, _count: [used, free])
        assert free_port() == free
        with pytest.raises(OSError, match="too few"):
            free_ports(2)
