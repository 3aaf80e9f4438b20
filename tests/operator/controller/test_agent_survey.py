"""Whose agents are asked first when more could be than at once."""

from __future__ import annotations

import asyncio
import time

from regroup_operator.controller import metered_answers
from regroup_operator.controller.agent_survey import (
    BYSTANDER_SECONDS,
    PLACE_SHARE,
    QUESTIONS_AT_ONCE,
    QUESTIONS_OF_A_NAMESPACE,
    Agent,
    AgentSurvey,
)
from regroup_trainer.protocol.desired import CoordinatorContact
from tests.support.waiting import until

AGENTS = tuple(Agent(f"uid-{number}", f"198.18.0.{number}") for number in range(4))


async def test_agents_of_one_namespace_that_do_not_answer_keep_nobody_else_waiting() -> None:
    """A hundred coordinators of one tenant are unresponsive, and so are their agents."""
    asked, places = list[str](), asyncio.Semaphore(QUESTIONS_OF_A_NAMESPACE)
    slots = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def hang(agent: Agent) -> CoordinatorContact:
        asked.append(agent.uid)
        await asyncio.Event().wait()
        raise AssertionError

    async def answer(_agent: Agent) -> CoordinatorContact:
        return CoordinatorContact(term=1, unanswered_seconds=4.0)

    hostile = [AgentSurvey(AGENTS, places) for _ in range(100)]
    tasks = [asyncio.create_task(survey.take_turn(hang, slots)) for survey in hostile]
    await until("questions", lambda: len(asked) >= QUESTIONS_OF_A_NAMESPACE)
    survey = AgentSurvey(AGENTS)
    await survey.take_turn(answer, slots)
    assert len(survey.contacts()) == len(AGENTS)
    assert len(asked) == QUESTIONS_OF_A_NAMESPACE, "no turn of the others was over before"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_costly_answer_counts_at_once_and_keeps_its_place_for_longer() -> None:
    places, slots = asyncio.Semaphore(len(AGENTS)), asyncio.Semaphore(QUESTIONS_AT_ONCE)
    cost = 0.005

    async def answer(_agent: Agent) -> CoordinatorContact:
        meter = metered_answers._meter.get()
        assert meter is not None
        meter.charge(cost)
        return CoordinatorContact(term=1, unanswered_seconds=4.0)

    survey, begun = AgentSurvey(AGENTS, places), time.monotonic()
    await survey.take_turn(answer, slots)
    assert len(survey.contacts()) == len(AGENTS)
    assert places.locked()
    await until("places", lambda: not places.locked())
    assert time.monotonic() - begun >= cost / PLACE_SHARE


async def test_an_agent_beside_the_coordinator_is_waited_for_less_long_than_another() -> None:
    given_up = list[str]()

    async def hang(agent: Agent) -> CoordinatorContact:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(agent.uid)
        raise AssertionError

    survey = AgentSurvey((AGENTS[0], Agent("beside", "198.18.0.9", BYSTANDER_SECONDS)))
    await survey.take_turn(hang, asyncio.Semaphore(QUESTIONS_AT_ONCE))
    assert given_up == ["beside", AGENTS[0].uid]
