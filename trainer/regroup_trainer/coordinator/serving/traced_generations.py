"""Exports the trace of each generation once it has made its first step, or never will."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.generation_trace import (
    Departure,
    TracedGeneration,
    departure_of,
    spans_of,
)
from regroup_trainer.system.spans import Span

log = logging.getLogger(__name__)


class TracedGenerations:
    """Those that the coordinator with this state forms, of the job with this identity. Times are
    monotonic seconds. `offer` takes spans, and returns at once.
    """

    def __init__(
        self, state: State, identity: str, offer: Callable[[Iterable[Span]], None], now: float
    ) -> None:
        self._state = state
        self._identity = identity
        self._offer = offer
        self._since = now
        self._newest: CurrentGeneration | None = None
        self._before: Departure | None = None
        self._is_open = False
        """Whether the trace of the newest one is still to be exported."""

    def look(self, now: float) -> None:
        """See what the last decision has changed. Whatever goes wrong costs a trace alone."""
        current = self._state.current
        if current is self._newest and not self._is_open:
            return
        try:
            self._look(current, now)
        except Exception:
            self._is_open = False
            log.exception("cannot export a trace")

    def _look(self, current: CurrentGeneration | None, now: float) -> None:
        former = self._newest
        if current is not former:
            if former is not None and self._is_open:
                self._export(former, now)
            self._before = departure_of(former) if former is not None else None
            self._newest, self._is_open = current, current is not None and not current.adopted
        if current is not None and self._is_open and self._is_over(current):
            self._export(current, now)

    def _is_over(self, current: CurrentGeneration) -> bool:
        is_there = current.restored_at is not None and current.first_commit_at is not None
        return is_there or self._state.outcome is not None

    def _export(self, generation: CurrentGeneration, now: float) -> None:
        self._is_open = False
        until = generation.failure.time if generation.failure is not None else now
        until = max(until, generation.begun)
        traced = TracedGeneration(generation, self._before, self._since, until)
        self._offer(spans_of(self._state, self._identity, traced))
