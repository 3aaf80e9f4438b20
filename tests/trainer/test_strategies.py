"""Every strategy trains as one process does, and goes on from what any other has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regroup_trainer.history import audit
from tests.support.ranks import RankOutcome, Template, generation, train_config

FP32_ROUNDING = 1e-5
STEPS = 6
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (3, {"strategy": "ddp", "bucketMegabytes": 1}),
    "ddp-static": (2, {"strategy": "ddp", "staticGraph": True}),
    "zero": (3, {"strategy": "zero"}),
    "fsdp": (2, {"strategy": "fsdp"}),
    "fsdp-gathered": (2, {"strategy": "fsdp", "reshardAfterForward": False}),
    "fsdp-offload": (2, {"strategy": "fsdp", "cpuOffload": True}),
    "hsdp": (4, {"strategy": "hsdp", "shardGroupSize": 2}),
    "dp": (1, {"strategy": "dp"}),
}
"""World size and parallelism."""


def shown(template: Template, folder: Path, world: int, parallelism: dict[str, Any], **sections: Any) -> RankOutcome:
    """Rank 0 of a run whose whole state is in `folder`."""
    folder.mkdir(exist_ok=True)
    record = generation(folder / "job", world, train_config(parallelism=parallelism, **sections))
    outcomes = template.run(record, entry="tests.trainer.faults:show_state", options={"folder": str(folder)})
    assert [outcome.exit_code for outcome in outcomes] == [0] * world, [outcome.stderr for outcome in outcomes]
    return outcomes[0]


def state(folder: Path, name: str = "final") -> Any:
    return torch.load(folder / f"{name}.pt")


@pytest.fixture(scope="module")
def reference(template: Template, tmp_path_factory: pytest.TempPathFactory) -> tuple[RankOutcome, Any]:
    """What one process trains, and its last state."""
    folder = tmp_path_factory.mktemp("reference")
    return shown(template, folder, 1, {}), state(folder)


@pytest.mark.parametrize("name", STRATEGIES)
def test_loss_and_parameters_are_those_of_one_process(
    template: Template, tmp_path: Path, reference: tuple[RankOutcome, Any], name: str
) -> None:
    leader = shown(template, tmp_path, *STRATEGIES[name])
    alone, expected = reference
    assert leader.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)
    found = state(tmp_path)
    assert found["model"].keys() == expected["model"].keys()
    for parameter, value in found["model"].items():
        assert torch.allclose(value, expected["model"][parameter], rtol=1e-3, atol=2e-5), parameter
    assert audit(tmp_path / "job") == []
