"""What rank 0 reports of how well the GPUs are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.environment import PEAK_TFLOPS
from regroup_trainer.rank.built_in_program import BuiltInProgram
from regroup_trainer.rank.reporting import utilization_of
from tests.support.ranks import train_config
from tests.support.samples import config, dataset

GROUP = GenerationGroup(rank=0, size=4, local_rank=0, device=torch.device("cpu"))


@pytest.fixture
def program(tmp_path: Path) -> BuiltInProgram:
    return BuiltInProgram(train_config(), dataset(config("synthetic", classes=97), 32, tmp_path))


def test_the_utilization_is_unknown_on_a_cpu(program: BuiltInProgram) -> None:
    assert utilization_of(program, GROUP)(1e6) is None
    assert "flops_per_token" not in vars(program), "counted for nothing"


def test_with_a_given_peak_the_operations_are_those_of_the_model(
    program: BuiltInProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PEAK_TFLOPS, "0.5")
    share = 1000 * program.flops_per_token / (4 * 0.5e12)
    assert program.flops_per_token > 1e5
    assert utilization_of(program, GROUP)(1000) == pytest.approx(share)
