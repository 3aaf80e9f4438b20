"""When the next save is due in a generation whose state was restored."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.save_schedule import SaveTimer
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.rank.entering import _restored_timer
from regroup_trainer.rank.joining import JoinedGeneration


def restored(step: int, saved: int | None, **policy: Any) -> SaveTimer:
    """The timer after the state of `step` was restored, with a checkpoint of a minute ago."""
    desired = SimpleNamespace(checkpoint=CheckpointPolicy.model_validate(policy))
    record = SimpleNamespace(desired=desired)
    joined = SimpleNamespace(assignment=SimpleNamespace(record=record))
    manifest = None if saved is None else SimpleNamespace(step=saved, time=time.time() - 60.0)
    return _restored_timer(cast(JoinedGeneration, joined), cast(Manifest, manifest), step)


@pytest.mark.parametrize(
    ("step", "saved", "soon"),
    [
        (110, 0, True),
        (110, None, True),
        (100, 100, False),  # from a checkpoint
        (199, 100, False),
        (0, None, False),  # from scratch
    ],
)
def test_a_checkpoint_that_a_snapshot_lacks_is_made_soon(
    step: int, saved: int | None, soon: bool
) -> None:
    """Its save had failed, or was broken off, and the next one may be an interval away."""
    policy = CheckpointPolicy(interval_steps=100)
    timer = restored(step, saved, interval_steps=100)
    assert not timer.due(policy)
    timer._now = lambda: time.monotonic() + 6.0
    assert timer.due(policy) is soon


def test_an_interval_in_seconds_goes_on_with_the_restored_state() -> None:
    assert restored(110, 100, interval_seconds=50).due(CheckpointPolicy(interval_seconds=50))
    assert not restored(110, 100, interval_seconds=90).due(CheckpointPolicy(interval_seconds=90))
