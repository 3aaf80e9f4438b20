"""What is known to be wrong with a program's own rendezvous."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.system.rendezvous_check import (
    RankPlace,
    is_address_in_use,
    is_loopback,
    is_taken,
    problem,
)

PLACE = RankPlace(rank=2, world_size=4, local_rank=0, local_world_size=2, hosts=2)
SET = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("env://?rank=0&world_size=4", "got rank 0, which is LOCAL_RANK"),
        ("env://?rank=1&world_size=4", "got rank 1, which is none of its variables"),
        ("env://?rank=2&world_size=2", "got world_size 2, and there are 4 ranks"),
        ("tcp://localhost:29500?rank=2&world_size=4", "address to meet at is localhost"),
        ("tcp://127.0.0.1:29500?rank=2&world_size=4", "on each of the 2 workers"),
        ("tcp://[::1]:29500?rank=02&world_size=+4", "on each of the 2 workers"),
        ("env://?rank=00&world_size=4", "got rank 0, which is LOCAL_RANK"),
    ],
)
def test_what_would_wait_in_vain_is_named(url: str, words: str) -> None:
    assert words in problem(url, SET, PLACE)


def test_a_program_that_changes_the_variables_is_named() -> None:
    assert "MASTER_ADDR" in problem("env://", {**SET, "MASTER_ADDR": "localhost"}, PLACE)
    assert "rank 0" in problem("env://", {**SET, "RANK": "0"}, PLACE)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("env://", PLACE),
        ("env://?rank=2&world_size=4", PLACE),
        ("env://?rank=02&world_size=04", PLACE),
        ("env://?rank=two&world_size=4", PLACE),  # c10d says what is wrong
        ("env://?rank=2&world_size=" + "9" * 5000, PLACE),
        ("tcp://[bad:1?rank=0&world_size=4", PLACE),
        ("tcp://10.0.0.1:29500?rank=2&world_size=4", PLACE),
        ("env://?rank=0&world_size=2", PLACE),  # a group of this worker's ranks
        ("tcp://localhost:1?rank=1&world_size=2", RankPlace(1, 2, 1, 2, hosts=1)),
        ("tcp://127.0.0.1:5555?rank=0&world_size=1", PLACE),  # a group of this rank alone
        ("tcp://10.0.0.9:6666?rank=0&world_size=3", PLACE),  # with others than the job's ranks
    ],
)
def test_what_can_succeed_is_left_alone(url: str, place: RankPlace) -> None:
    assert problem(url, SET, place) == ""


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
    assert "address to meet at" in problem("env://", {**SET, "MASTER_ADDR": host}, PLACE)


@pytest.mark.parametrize(
    "host",
    ["", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "worker-0.localhost.svc", "1", "\0", "a" * 9999],
)
def test_another_machine_may_be_met_there(host: str) -> None:
    assert not is_loopback(host)


@settings(max_examples=300, deadline=None)
@given(
    url=st.text("envtcp:/?&=ranks_world1270.[]%@#\0\ud800", max_size=60) | st.text(max_size=20),
    address=st.text(st.characters(codec=None), max_size=10),
    number=st.text("0123 +-_٣a", max_size=4),
)
def test_no_rendezvous_ends_in_another_error(url: str, address: str, number: str) -> None:
    variables = {"RANK": number, "WORLD_SIZE": number, "MASTER_ADDR": address}
    assert len(problem(url, variables, PLACE)) < 1000


def test_an_address_in_use_is_our_matter_only_where_another_took_the_port_that_we_chose() -> None:
    text = "failed to listen on any local network address. port: {}, name: EADDRINUSE, message: "
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        own = OSError(text.format(port) + "address already in use")
        assert is_address_in_use(own)
        assert not is_taken(own, port), "it listens there itself"
        assert not is_taken(own, 1)
    assert is_taken(own, port)
    assert not is_address_in_use(OSError("Connection refused"))
