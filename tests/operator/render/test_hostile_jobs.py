"""Drawn TrainingJobs, hostile in any field: each is taken, or refused with field and value. None
ends in an error that nobody expects.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bench.fuzz.judgement import names_field_and_value
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from tests.support.hostile_jobs import draw_spec, draw_template
from tests.support.kube_api import Json
from tests.support.large_specs import draw_large, draw_too_large, draw_wide
from tests.support.offline_operator import problem_of
from tests.support.specs import SMALLEST


def with_template(random: Random) -> Json:
    """An ordinary spec with a drawn template."""
    return {**SMALLEST, "template": draw_template(random)}


@pytest.mark.parametrize(("count", "draw"), [(600, with_template), (200, draw_spec)])
def test_each_is_taken_or_refused_by_name(count: int, draw: Callable[[Random], Json]) -> None:
    random = Random(19)
    specs = [draw(random) for _ in range(count)]
    refused = [(problem, spec) for spec in specs if (problem := problem_of(spec))]
    assert not [problem for problem, spec in refused if not names_field_and_value(problem, spec)]
    assert 0 < len(refused) < count


def draw_widest(random: Random) -> Json:
    """As many workers as are possible, or one more."""
    return draw_wide(random, DEFAULT_MAX_WORKERS)


@pytest.mark.parametrize(
    ("count", "draw"), [(12, draw_large), (12, draw_widest), (3, draw_too_large)]
)
def test_of_the_largest_those_within_bounds_are_taken_and_others_refused_by_name(
    count: int, draw: Callable[[Random], Json]
) -> None:
    random = Random(19)
    specs = [draw(random) for _ in range(count)]
    refused = [(problem, spec) for spec in specs if (problem := problem_of(spec))]
    assert not [problem for problem, spec in refused if not names_field_and_value(problem, spec)]
    assert (len(refused) < count) is (draw is not draw_too_large)
