"""Addresses of clusters."""

from __future__ import annotations

import ipaddress

import pytest

from devcluster.errors import DevclusterError
from devcluster.network import BLOCKS, MAX_NODES, TEST_RANGE, Block, free_block, host_link
from devcluster.registry import validated_name


def test_blocks_lie_in_the_test_range_and_do_not_overlap() -> None:
    networks = [Block(index).network for index in range(BLOCKS)]
    assert all(network.subnet_of(TEST_RANGE) for network in networks)
    assert (
        sum(network.num_addresses for network in ipaddress.collapse_addresses(networks))
        == TEST_RANGE.num_addresses
    )


def test_nodes_pods_and_services_of_a_block_do_not_overlap() -> None:
    block = Block(3)
    pods = [ipaddress.IPv4Network(block.node_pods(index)) for index in range(1, MAX_NODES + 1)]
    nodes = ipaddress.IPv4Network(f"{block.control_plane}/24", strict=False)
    parts = [nodes, *pods, block.services]
    assert all(part.subnet_of(block.network) for part in parts)
    assert not any(a.overlaps(b) for number, a in enumerate(parts) for b in parts[number + 1 :])
    assert ipaddress.IPv4Address(block.node(MAX_NODES)) in nodes
    assert ipaddress.IPv4Address(block.dns_service) in block.services


def test_a_new_cluster_takes_a_block_that_no_cluster_has_and_no_route_touches() -> None:
    foreign = ipaddress.IPv4Network("198.18.40.0/24")  # in block 1
    assert free_block([0], [foreign]).index == 2


def test_when_all_blocks_are_taken_the_error_says_what_to_do() -> None:
    with pytest.raises(DevclusterError, match="take a cluster down"):
        free_block(range(BLOCKS), [])


@pytest.mark.parametrize("name", ["", "A", "1a", "a-", "a_b", "thirteen-long"])
def test_names_that_the_kernel_or_kubernetes_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(DevclusterError, match="at most 12"):
        validated_name(name)


def test_the_longest_name_makes_a_link_name_that_fits() -> None:
    assert len(host_link(validated_name("twelve-chars"))) == 15


def test_a_cache_folder_that_makes_sockets_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGROUP_CACHE", "/" + "long" * 20)
    with pytest.raises(DevclusterError, match="shorten REGROUP_CACHE"):
        validated_name("test")
