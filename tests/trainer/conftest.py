"""What tests of the training side begin with: a warm template process, an empty volume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from regroup_trainer.checkpoint.layout import Layout
from tests.support.ranks import Template

if TYPE_CHECKING:
    from regroup_trainer.parallel.process_group import GenerationGroup


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """Forks real ranks; shared, since only its start is slow."""
    scratch = tmp_path_factory.mktemp("ranks", numbered=True)
    template = Template(scratch)
    yield template
    template.close()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty job's directory."""
    layout = Layout(tmp_path)
    layout.lineage.mkdir()
    layout.checkpoints.mkdir()
    return layout


@pytest.fixture
def group_of_one() -> Iterator[GenerationGroup]:
    """This process, in a process group of its own."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from regroup_trainer.parallel.process_group import GenerationGroup

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield GenerationGroup(0, 1, 0, torch.device("cpu"))
    dist.destroy_process_group()
