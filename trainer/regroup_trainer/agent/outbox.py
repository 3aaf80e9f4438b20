"""What an agent has to send, in order. Reports of its ranks become one message. Pure.

Ranks restore, park and finish at almost the same time. Such a report waits a little for those of
the other ranks. Of progress only the newest of each rank is kept, and it waits longer: a
coordinator of thousands of agents reads each of their messages.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import Any

from pydantic import BaseModel

from regroup_trainer.protocol.agent_messages import MOST_REPORTS, Reports
from regroup_trainer.protocol.rank_messages import (
    AGENT_PROGRESS_SECONDS,
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
    progress_seconds,
)

GATHER_SECONDS = 0.01
"""How long a report waits for the same of other ranks."""
MOST_MESSAGES = 4096
"""That wait for a coordinator: four of each rank of the largest agent. Beyond it the oldest is
dropped, and the next hello repeats what counts.
"""
MOST_QUEUED = MOST_REPORTS // 2
"""Reports of one message that have waited in the queue. So many with progress may be added."""
REPORTS_BYTES = 64 * 1024
"""A message that holds so much is followed by another. So it is at most so much and one report."""


class Outbox:
    """Of an agent with so many ranks. Times are monotonic seconds."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._queue: deque[BaseModel] = deque(maxlen=MOST_MESSAGES)
        self._due = math.inf
        """Of what is in the queue."""
        self._progress: dict[int, Progress] = {}
        """The newest that was not sent, by rank."""
        self._progress_due = math.inf
        self._progress_sent = -math.inf
        self._progress_seconds = AGENT_PROGRESS_SECONDS

    def add(self, message: BaseModel, now: float) -> None:
        """Another message. Progress replaces an older one of its rank."""
        if isinstance(message, Progress):
            self._progress[message.rank] = _brief(message)
            self._progress_due = min(self._progress_due, self._due_of_progress(now))
            return
        if isinstance(message, Report) and message.rank in self._progress:
            self._queue.append(self._progress.pop(message.rank))  # it came before
            self._progress_due = self._progress_due if self._progress else math.inf
        self._queue.append(message)
        wait = GATHER_SECONDS if self._is_one_of_more(message) else 0.0
        self._due = min(self._due, now + wait)

    def pause(self, now: float) -> float | None:
        """Seconds until a message is due; None: until another is added."""
        due = self._due if self._queue else self._progress_due
        return None if due == math.inf else max(0.0, due - now)

    def take(self, now: float) -> BaseModel | None:
        """The next message that is due; None: there is none."""
        if now < (self._due if self._queue else self._progress_due):
            return None
        if not self._queue or isinstance(self._queue[0], Report):
            return self._take_reports(now)
        message = self._queue.popleft()
        self._due = self._due if self._queue else math.inf
        return message

    def give_back(self, message: BaseModel) -> None:
        """It could not be sent, and comes before all others, as far as there is room: it is the
        oldest.
        """
        parts = message.reports if isinstance(message, Reports) else (message,)
        room = MOST_MESSAGES - len(self._queue)
        self._queue.extendleft(islice(reversed(parts), room))
        self._due = -math.inf

    def begin(self, agents: int) -> None:
        """The generation of all reports so far is over, and one of so many agents begins."""
        self._progress_seconds = progress_seconds(agents)
        kept = [message for message in self._queue if not isinstance(message, Report)]
        self._queue = deque(kept, maxlen=MOST_MESSAGES)
        self._due = self._due if kept else math.inf
        self._progress.clear()
        self._progress_due, self._progress_sent = math.inf, -math.inf

    def _due_of_progress(self, now: float) -> float:
        wait = GATHER_SECONDS if len(self._progress) < self._ranks else 0.0
        pause = AGENT_PROGRESS_SECONDS if 0 in self._progress else self._progress_seconds
        return max(now + wait, self._progress_sent + pause)

    def _is_one_of_more(self, message: BaseModel) -> bool:
        """Whether other ranks are about to report the same."""
        if not isinstance(message, Restored | Parked | Finished):
            return False
        return len(self._queue) < self._ranks

    def _take_reports(self, now: float) -> Reports:
        taken: list[Any] = []
        size = 0
        while self._queue and size < REPORTS_BYTES and len(taken) < MOST_QUEUED:
            report = self._queue[0]
            if not isinstance(report, Report):
                break
            self._queue.popleft()
            taken.append(report)
            size += len(report.model_dump_json())
        self._due = self._due if self._queue else math.inf
        if not self._queue and now >= self._progress_due:  # it is newer than what is in the queue
            taken += [self._progress.pop(rank) for rank in [*self._progress][:MOST_QUEUED]]
            self._progress_due, self._progress_sent = now if self._progress else math.inf, now
        return Reports(reports=tuple(taken))


def _brief(progress: Progress) -> Progress:
    """Without what the coordinator reads of rank 0 only."""
    if progress.rank == 0:
        return progress
    return progress.model_copy(update={"seconds": {}, "epoch": 0.0, "tokens": 0})
