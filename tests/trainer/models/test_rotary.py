"""Rotary positions."""

from __future__ import annotations

import pytest
import torch

from regroup_trainer.models.rotary import rotary_angles, rotate


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    cosine, sine = rotary_angles(32, 8, 10000.0, torch.device("cpu"))
    queries = rotate(query.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    keys = rotate(key.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    assert queries[7] @ keys[3] == pytest.approx(float(queries[24] @ keys[20]), rel=1e-4)
    assert queries.norm(dim=-1) == pytest.approx(query.norm().expand(32), rel=1e-5)


def test_a_larger_base_turns_more_slowly() -> None:
    fast, slow = (rotary_angles(8, 16, base, torch.device("cpu"))[1][1] for base in (1e4, 5e5))
    assert torch.all(slow[1:] < fast[1:])
    assert fast[0] == slow[0]
