"""Asks a job's agents since when their coordinator does not answer them, while it does not answer
us.

Agents are asked at the IPs of their pods, so that no name server is needed, with the job's token. A
few are asked at a time, in turn, and over all jobs only so many at once: an outage of our own
network must not make us send more than before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from regroup_operator.controller.metered_answers import SMALL_BYTES, Meter, charged_to
from regroup_operator.decide.coordinator_evidence import bystanders, witnesses
from regroup_operator.decide.succession import current_coordinator
from regroup_operator.errors import CoordinatorError
from regroup_operator.observe.observed import AnyJob, Observed
from regroup_trainer.protocol.desired import CoordinatorContact

AGENTS_A_TURN = 4
TURN_SECONDS = 1.0
"""Between two turns of questions about one coordinator, and the longest wait for an answer."""
BYSTANDER_SECONDS = 0.25
"""The longest wait for an agent beside the coordinator: both may be dead, and the turn waits."""
QUESTIONS_AT_ONCE = 64
"""Over all jobs."""
QUESTIONS_OF_A_NAMESPACE = 16
"""Agents that do not answer take a place for a whole turn, and a tenant may have thousands."""
PLACE_SHARE = 0.005
"""Of the operator's thread, that reading answers may take for each place: a place whose question
was answered at more cost stays taken for as much longer.
"""
FRESH_SECONDS = 3.0
"""What an agent reported counts for so long."""


@dataclass(frozen=True)
class Agent:
    """An agent that may be asked."""

    uid: str
    """UID of its pod."""
    address: str
    seconds: float = TURN_SECONDS
    """How long its answer is waited for."""


def agents_to_ask(job: AnyJob, observed: Observed) -> tuple[Agent, ...]:
    """Whom to ask about the coordinator while it does not answer."""
    coordinator = current_coordinator(observed, job.status)
    if coordinator is None:
        return ()
    return (
        *(Agent(pod.uid, pod.ip) for pod in witnesses(coordinator, observed)),
        *(Agent(pod.uid, pod.ip, BYSTANDER_SECONDS) for pod in bystanders(coordinator, observed)),
    )


Ask = Callable[[Agent], Awaitable[CoordinatorContact]]
"""Asks one agent. Raises CoordinatorError."""


@dataclass
class AgentSurvey:
    """What the agents of one job reported of its coordinator."""

    agents: Sequence[Agent] = ()
    """Who can be asked, the best witnesses first."""
    places: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(QUESTIONS_OF_A_NAMESPACE)
    )
    """Of the jobs of its namespace."""
    _turn: int = 0
    _answers: dict[str, tuple[float, CoordinatorContact]] = field(default_factory=dict)

    def contacts(self) -> dict[str, CoordinatorContact]:
        """UID -> what it reported, where that is fresh."""
        now = time.monotonic()
        return {
            uid: contact
            for uid, (at, contact) in self._answers.items()
            if now - at <= FRESH_SECONDS
        }

    def forget(self) -> None:
        """The coordinator answers: what agents reported before is of no use."""
        self._answers.clear()
        self._turn = 0

    async def take_turn(self, ask: Ask, slots: asyncio.Semaphore) -> None:
        """Ask the next few agents, and keep what they report."""
        asked = self._next()
        found = await asyncio.gather(*(self._ask(agent, ask, slots) for agent in asked))
        now = time.monotonic()
        answers = zip(asked, found, strict=True)
        self._answers |= {
            agent.uid: (now, contact) for agent, contact in answers if contact is not None
        }

    def _next(self) -> list[Agent]:
        """A window that moves on, since the first agents may have died with the coordinator."""
        count = min(AGENTS_A_TURN, len(self.agents))
        begin = self._turn * AGENTS_A_TURN
        self._turn += 1
        return [self.agents[(begin + place) % len(self.agents)] for place in range(count)]

    async def _ask(
        self, agent: Agent, ask: Ask, slots: asyncio.Semaphore
    ) -> CoordinatorContact | None:
        # Its own first: those of one namespace that wait must not stand in front of others.
        await self.places.acquire()
        meter = Meter(SMALL_BYTES)
        try:
            async with slots, asyncio.timeout(agent.seconds):
                with charged_to(meter):
                    return await ask(agent)
        except (CoordinatorError, TimeoutError):
            return None
        finally:
            # Nobody waits for it: the answer counts at once.
            pause = meter.take() / PLACE_SHARE
            asyncio.get_running_loop().call_later(pause, self.places.release)
