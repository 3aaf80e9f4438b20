"""The figures that follow from a ledger."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.ledger import Ledger


def test_goodput_takes_lost_work_off_and_is_zero_before_any_time() -> None:
    ledger = Ledger(seconds={"step": 8.0, "idle": 2.0}, lost_work_seconds=3.0)
    assert ledger.goodput_ratio == pytest.approx(0.5)
    assert Ledger().goodput_ratio == 0.0
