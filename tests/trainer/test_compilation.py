"""Compiled blocks: the same numbers, nothing compiled twice, a clear word where there is no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regroup_trainer.compilation import require_compiler
from regroup_trainer.errors import ConfigurationError
from tests.support.ranks import Template, generation, train_config


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world_size"), [("ddp", 1), ("fsdp", 2)], ids=["ddp", "fsdp"])
def test_compiled_blocks_train_as_plain_ones_do_and_are_compiled_once(
    template: Template, tmp_path: Path, strategy: str, world_size: int
) -> None:
    plain = train_config(parallelism={"strategy": strategy}, training={"steps": 3})
    compiled = train_config(
        parallelism={"strategy": strategy},
        training={"steps": 3, "compile": True, "activation_checkpointing": "selective"},
    )
    expected = template.run(generation(tmp_path / "plain", world_size, plain))[0]
    found = template.run(generation(tmp_path / "compiled", world_size, compiled), entry="tests.trainer.telling:graphs")
    assert [outcome.exit_code for outcome in found] == [0] * world_size, found[0].stderr
    assert found[0].losses == pytest.approx(expected.losses, rel=1e-5)
    assert "graphs: 2\n" in found[0].stderr  # one for all blocks and steps, one for the loss


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="no g\\+\\+ on this worker"):
        require_compiler(torch.device("cpu"))
