"""What tests of the volume begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup_trainer.checkpoint.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty job's directory."""
    layout = Layout(tmp_path)
    layout.lineage.mkdir()
    layout.checkpoints.mkdir()
    return layout
