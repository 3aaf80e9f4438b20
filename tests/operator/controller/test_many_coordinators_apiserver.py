"""Coordinators of many jobs are all followed; they stop answering at once, and answer again: all
are kept. On a real API server.

COORDINATORS=1000 makes it a thousand; it then needs `--timeout=1800`, and a machine of its own.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.support.coordinated_jobs import coordinated_jobs, is_followed, is_kept_unanswered
from tests.support.kube_api import Namespace
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
COUNT = int(os.environ.get("COORDINATORS", "100"))
PATIENCE = max(120, COUNT)
"""Seconds for what takes longer the more jobs there are."""

LINES = 10
"""Of each coordinator, during which the operator's time is measured."""


def test_an_operator_hears_all_coordinators_and_keeps_them_when_it_was_cut_off_from_all(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    with coordinated_jobs(namespace, COUNT, PATIENCE) as jobs:
        first = jobs.coordinators()
        assert len(first) == COUNT
        used, begun = operator.cpu_seconds(), time.monotonic()
        lines = jobs.fleet.answers() + LINES * COUNT
        wait_until("lines", lambda: jobs.fleet.answers() >= lines, seconds=20 * LINES)
        cores = (operator.cpu_seconds() - used) / (time.monotonic() - begun)
        print(f"{LINES} lines of each of {COUNT} read with {cores:.2f} cores")
        with jobs.fleet.frozen():
            jobs.until_each("what is not known", is_kept_unanswered, PATIENCE)
        jobs.until_each("all to be followed again", is_followed, PATIENCE)
        assert jobs.coordinators() == first
        assert {status["coordinatorTerm"] for status in jobs.statuses()} == {1}
