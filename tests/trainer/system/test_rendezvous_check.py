"""What is known to be wrong with a program's own rendezvous."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.system.rendezvous_check import (
    RankPlace,
    host_problem,
    is_address_in_use,
    is_taken,
    port_of_all,
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
        ("file:///shared/meet?rank=0&world_size=4", "got rank 0, which is LOCAL_RANK"),
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
        ("file:///shared/meet?rank=2&world_size=4", PLACE),
        ("file:///shared/meet?rank=0&world_size=3", PLACE),
        ("tcp://10.0.0.9:6666?rank=0&world_size=3", PLACE),  # with others than the job's ranks
    ],
)
def test_what_can_succeed_is_left_alone(url: str, place: RankPlace) -> None:
    assert problem(url, SET, place) == ""


@settings(max_examples=300, deadline=None)
@given(
    url=st.text("envtcp:/?&=ranks_world1270.[]%@#\0\ud800", max_size=60) | st.text(max_size=20),
    address=st.text(st.characters(codec=None), max_size=10),
    number=st.text("0123 +-_٣a", max_size=4),
)
def test_no_rendezvous_ends_in_another_error(url: str, address: str, number: str) -> None:
    variables = {"RANK": number, "WORLD_SIZE": number, "MASTER_ADDR": address}
    assert len(problem(url, variables, PLACE)) < 1000


ELSEWHERE = "203.0.113.7"
"""An address for examples (RFC 5737), which no machine has."""


def test_a_rank_that_meets_at_its_own_machine_where_rank_0_is_on_another_is_named() -> None:
    url = "tcp://127.0.0.2:29500?rank=1&world_size=2"
    assert "this rank's own machine, and rank 0 is at 203" in problem(
        url, SET, RankPlace(1, 2, 0, 1, hosts=1, address=ELSEWHERE)
    )
    assert problem(url, SET, RankPlace(1, 2, 0, 1, hosts=1, address="127.0.0.1")) == ""


def test_a_store_that_nobody_would_find_is_named() -> None:
    first, second = (RankPlace(r, 2, 0, 1, 1, address="127.0.0.1", port=29500) for r in (0, 1))
    assert f"and {ELSEWHERE} is not its machine" in host_problem(ELSEWHERE, 29500, first)
    assert "which is rank 0's to host, and it is rank 1" in host_problem("127.0.0.1", 29500, second)
    for host, port, place in (
        ("127.0.0.1", 29500, first),
        ("localhost", 1, first),
        ("127.0.0.1", 29501, second),  # a store of its own
    ):
        assert host_problem(host, port, place) == ""


def test_all_ranks_meet_at_a_port_or_elsewhere() -> None:
    given = {**SET, "MASTER_PORT": "29500"}
    assert port_of_all("env://", given, PLACE) == 29500
    assert port_of_all("tcp://10.0.0.1:7?rank=2&world_size=4", given, PLACE) == 7
    for url in ("tcp://h:7?rank=0&world_size=2", "file:///f?rank=2&world_size=4", "tcp://h?rank=2"):
        assert port_of_all(url, given, PLACE) is None


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
