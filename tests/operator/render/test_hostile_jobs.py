"""Drawn TrainingJobs, hostile in any field: each is taken or refused by name, and none ends in an
error that nobody expects.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import pytest

from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import Job
from regroup_operator.render.pod_check import find_problem
from tests.support.hostile_jobs import draw_spec, draw_template
from tests.support.kube_api import Json
from tests.support.rendering import SETTINGS
from tests.support.specs import SMALLEST

METADATA = {"namespace": "a", "name": "gpt", "uid": "4322f31b-aaaa", "generation": 1}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def with_template(random: Random) -> Json:
    """An ordinary spec with a drawn template."""
    return {**SMALLEST, "template": draw_template(random)}


def problem_of(spec: Json) -> str:
    """Why the operator refuses a spec; empty when it makes pods of it."""
    job = read_job({"metadata": METADATA, "spec": spec}, NOW)
    return find_problem(job, SETTINGS) if isinstance(job, Job) else job.problem.message


@pytest.mark.parametrize(("count", "draw"), [(600, with_template), (200, draw_spec)])
def test_each_is_taken_or_refused_by_name(count: int, draw: Callable[[Random], Json]) -> None:
    random = Random(19)
    problems = [problem_of(draw(random)) for _ in range(count)]
    refused = [problem for problem in problems if problem]
    assert not [problem for problem in refused if not problem.startswith("spec")]
    assert 0 < len(refused) < count
