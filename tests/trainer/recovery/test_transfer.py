"""What a rank takes over into a state on another mesh."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from regroup_trainer.recovery.transfer import transplant
from regroup_trainer.step.gradients import local
from regroup_trainer.step.state import Position, TrainState

pytestmark = pytest.mark.usefixtures("group_of_one")


class Net(nn.Module):
    """Its second layer's forward pass can be made to lose a peer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.alone = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        if self.alone:
            raise RuntimeError("Connection closed by peer")
        found: torch.Tensor = self.second(hidden)
        return found


def make_state() -> TrainState:
    net = Net()
    for layer in (net.first, net):
        fully_shard(layer, reshard_after_forward=False)
    return TrainState(net, torch.optim.AdamW(net.parameters(), lr=0.1), Position(1, 2, 3))


def test_a_pass_that_broke_leaves_parameters_and_their_moments_to_be_taken() -> None:
    old, new = make_state(), make_state()
    old.model(torch.ones(1, 2)).sum().backward()
    old.optimizer.step()
    old.optimizer.zero_grad()
    kept = [local(parameter).clone() for parameter in old.model.parameters()]
    moments = [old.optimizer.state[parameter]["exp_avg"] for parameter in old.model.parameters()]
    cast(Net, old.model).alone = True
    with pytest.raises(RuntimeError, match="closed by peer"):
        old.model(torch.ones(1, 2))
    taken = transplant(old, new)
    assert taken.position == Position(1, 2, 3)
    for parameter, value, moment in zip(taken.model.parameters(), kept, moments, strict=True):
        assert torch.equal(local(parameter), value)
        assert torch.equal(local(taken.optimizer.state[parameter]["exp_avg"]), local(moment))
        assert taken.optimizer.state[parameter]["step"] == 1


def test_before_the_first_update_there_are_no_moments_to_be_taken() -> None:
    assert not transplant(make_state(), make_state()).optimizer.state
