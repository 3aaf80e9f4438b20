"""Coordinators of many jobs are all followed; they stop answering at once for longer than an agent
has to miss them, and answer again: all are kept. On a real API server.

COORDINATORS=1000 makes it a thousand; it then needs `--timeout=1800`, and a machine of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from regroup_trainer.protocol.desired import CoordinatorContact
from tests.support.agent_stub import AgentStub
from tests.support.coordinated_jobs import (
    CoordinatedJobs,
    coordinated_jobs,
    is_followed,
    is_in_an_outage,
    is_kept_unanswered,
)
from tests.support.kube_api import Namespace
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
COUNT = int(os.environ.get("COORDINATORS", "100"))
PATIENCE = max(120, COUNT)
"""Seconds for what takes longer the more jobs there are."""

LINES = 10
"""Of each coordinator, during which the operator's time is measured."""
OUTAGE_SECONDS = 20.0
"""At least. An operator once replaced every coordinator that it could not see for 15 s."""
WITNESSED = 3
"""How many jobs have an agent that can be asked."""
ANSWERED = CoordinatorContact(term=1, unanswered_seconds=0.0)
UNANSWERED = CoordinatorContact(term=1, unanswered_seconds=60.0)


def test_an_operator_hears_all_coordinators_and_keeps_them_when_it_was_cut_off_from_all(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    with ExitStack() as started:
        jobs = started.enter_context(coordinated_jobs(namespace, COUNT, PATIENCE))
        agents = [started.enter_context(AgentStub(ANSWERED)) for _ in range(WITNESSED)]
        for number, agent in enumerate(agents):
            jobs.run_worker(number, agent.address)
            expect_questions(jobs, number, agent)
        first = jobs.coordinators()
        assert len(first) == COUNT
        used, begun = operator.cpu_seconds(), time.monotonic()
        lines = jobs.fleet.answers() + LINES * COUNT
        wait_until("lines", lambda: jobs.fleet.answers() >= lines, seconds=20 * LINES)
        cores = (operator.cpu_seconds() - used) / (time.monotonic() - begun)
        print(f"{LINES} lines of each of {COUNT} read with {cores:.2f} cores")
        with jobs.fleet.frozen():
            keep_all_unanswered(jobs, agents)
        jobs.until_each("all to be followed again", is_followed, PATIENCE)
        assert jobs.coordinators() == first
        assert {status["coordinatorTerm"] for status in jobs.statuses()} == {1}


def expect_questions(jobs: CoordinatedJobs, number: int, agent: AgentStub) -> None:
    """While the coordinator of one job alone does not answer, its agent is asked."""
    jobs.move_coordinator(number, agent.address)
    wait_until("a question to its agent", lambda: len(agent.tokens) > 0, PATIENCE)
    jobs.move_coordinator(number, jobs.fleet.addresses[number])
    jobs.until_each("all to be followed again", is_followed, PATIENCE)


def keep_all_unanswered(jobs: CoordinatedJobs, agents: Sequence[AgentStub]) -> None:
    """Wait through an outage. The agents have no answer either, as soon as it is noticed: those of
    the first few coordinators that fail would be believed before.
    """
    first, begun = jobs.coordinators(), time.monotonic()
    wait_until("an outage", lambda: any(map(is_in_an_outage, jobs.statuses())), PATIENCE)
    for agent in agents:
        agent.contact = UNANSWERED
    jobs.until_each("what is not known", is_kept_unanswered, PATIENCE)

    def is_over() -> bool:
        assert jobs.coordinators() == first
        return time.monotonic() - begun >= OUTAGE_SECONDS

    wait_until("the end of the outage", is_over, 2 * OUTAGE_SECONDS)
    assert all(map(is_kept_unanswered, jobs.statuses()))
