"""Drawn TrainingJobs, hostile in any field: each is taken or refused by name, and none ends in an
error that nobody expects.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.support.hostile_jobs import draw_spec, draw_template
from tests.support.kube_api import Json
from tests.support.offline_operator import problem_of
from tests.support.specs import SMALLEST


def with_template(random: Random) -> Json:
    """An ordinary spec with a drawn template."""
    return {**SMALLEST, "template": draw_template(random)}


@pytest.mark.parametrize(("count", "draw"), [(600, with_template), (200, draw_spec)])
def test_each_is_taken_or_refused_by_name(count: int, draw: Callable[[Random], Json]) -> None:
    random = Random(19)
    problems = [problem_of(draw(random)) for _ in range(count)]
    refused = [problem for problem in problems if problem]
    assert not [problem for problem in refused if not problem.startswith("spec")]
    assert 0 < len(refused) < count
