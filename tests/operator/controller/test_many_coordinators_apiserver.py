"""Coordinators of many jobs stop answering at once, and answer again: all are kept. On a real API
server.
"""

from __future__ import annotations

import pytest

from tests.support.coordinated_jobs import coordinated_jobs, is_heard, is_kept_unheard
from tests.support.kube_api import Namespace
from tests.support.operator_process import OperatorProcess

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
COUNT = 100


def test_an_operator_that_was_cut_off_from_all_coordinators_keeps_them(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    with coordinated_jobs(namespace, COUNT) as jobs:
        first = jobs.coordinators()
        assert len(first) == COUNT
        with jobs.fleet.frozen():
            jobs.until_each("what is not known", is_kept_unheard)
        jobs.until_each("all to be heard again", is_heard)
        assert jobs.coordinators() == first
        assert {status["coordinatorTerm"] for status in jobs.statuses()} == {1}
