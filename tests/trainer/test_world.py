"""Finding the way to the others, and telling their loss from one's own faults."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from regroup_trainer.errors import FencedError
from regroup_trainer.world import interface_towards, is_peer_loss


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
        RuntimeError("[...unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"),
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
