"""Compiled blocks: the same numbers, nothing compiled twice, a clear word where there is no
compiler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel.compilation import require_compiler
from tests.support.ranks import Template, generation, succeeded, train_config

BLOCKS_AND_LOSS, BLOCKS = 2, 1
"""Graphs: one for all blocks and steps, and one for the loss, which stays as it is where logits are
cut.
"""
LAYOUTS: dict[str, tuple[int, dict[str, Any], int]] = {
    "ddp": (1, {}, BLOCKS_AND_LOSS),
    "fsdp": (2, {"strategy": "fsdp"}, BLOCKS_AND_LOSS),
    "pipeline": (2, {"pipelineParallel": 2}, BLOCKS),
    "context": (2, {"contextParallel": 2}, BLOCKS),
    "tensor": (2, {"tensorParallel": 2}, BLOCKS),
    "fsdp x tensor": (4, {"strategy": "fsdp", "tensorParallel": 2}, BLOCKS),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_blocks_train_as_plain_ones_do_and_are_compiled_once(
    template: Template, tmp_path: Path, layout: str
) -> None:
    world_size, parallelism, graphs = LAYOUTS[layout]
    plain = train_config(parallelism=parallelism, training={"steps": 3})
    compiled = train_config(
        parallelism=parallelism,
        training={"steps": 3, "compile": True, "activation_checkpointing": "selective"},
    )
    expected = template.run(generation(tmp_path / "plain", world_size, plain))[0]
    found = template.run(
        generation(tmp_path / "compiled", world_size, compiled),
        entry="tests.support.rank_observers:graphs",
    )
    succeeded(found)
    assert found[0].losses == pytest.approx(expected.losses, rel=1e-5)
    assert f"graphs: {graphs}\n" in found[0].stderr


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="no g\\+\\+ on this worker"):
        require_compiler(torch.device("cpu"))
