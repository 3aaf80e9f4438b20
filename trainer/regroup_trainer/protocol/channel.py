"""The rank's end of the socket to its agent: reports go up, orders come down, one JSON a line.

Nothing here blocks a step: a report is one small write, and a thread receives the orders. What
cannot wait for the training, which may be stuck in a collective, happens in that thread.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from regroup_trainer.protocol.commit_page import CommitPage
from regroup_trainer.protocol.coordinator_messages import (
    Decide,
    Enter,
    LeaveGeneration,
    RankMessage,
    rank_message,
)
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.protocol.rank_messages import RankReport

PROGRESS_SECONDS = 0.5
"""Least time between two Progress reports. Each costs agent and coordinator half a millisecond."""


class Sender(Protocol):
    """Sends reports."""

    def send(self, report: RankReport) -> None:
        """Send a report to the agent, from any thread.

        Never raises: a rank without an agent is about to be killed anyway.
        """


class Channel(Sender, Protocol):
    """What a rank needs of the connection to its agent."""

    lasting: bool
    """Whether another generation may follow in this process."""

    def committed(self, step: int, time: float) -> bool:
        """Note a step committed at wall clock `time`; returns whether to send a Progress now."""

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Call `act` when this generation is known to be over: from another thread, or at once."""

    def is_over(self) -> bool:
        """Whether the generation of the last `when_over` is known to be over."""

    def next_assignment(self) -> Assignment:
        """Wait for this process's place in the next generation. For lasting channels only."""


class AgentChannel:
    """A connection to the agent's Unix socket at `path`. Raises OSError when nobody listens there.

    `page` holds the last commit, so that the agent knows it even of a rank that was killed.
    `on_enter` gets the assignment of every generation that this process enters later.
    """

    lasting = True

    def __init__(
        self, path: str, page: CommitPage, on_enter: Callable[[Assignment], None] = lambda _: None
    ) -> None:
        self._page = page
        self._on_enter = on_enter
        self._reported_at = -math.inf
        self._decisions: queue.SimpleQueue[Decide] = queue.SimpleQueue()
        self._assignments: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over: GenerationNumber | None = None
        self._watched: tuple[GenerationNumber, Callable[[], None]] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._sending = threading.Lock()
        threading.Thread(target=self._receive, name="orders", daemon=True).start()

    def send(self, report: RankReport) -> None:
        """Send a report to the agent."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(report.model_dump_json().encode() + b"\n")

    def committed(self, step: int, time: float) -> bool:
        """Note a committed step; returns whether PROGRESS_SECONDS have passed since a report."""
        self._page.write(step, time)
        if 0.0 <= time - self._reported_at < PROGRESS_SECONDS:
            return False
        self._reported_at = time
        return True

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""
        decisions = []
        while not self._decisions.empty():
            decisions.append(self._decisions.get())
        return decisions

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Call `act` once the agent reports that this generation is over, or at once if it has."""
        with self._lock:
            self._watched = (generation, act)
            over = self._over == generation
        if over:
            act()

    def is_over(self) -> bool:
        """Whether the agent has reported it."""
        with self._lock:
            return self._watched is not None and self._over == self._watched[0]

    def next_assignment(self) -> Assignment:
        """Wait for the next generation; an agent that has none for this process kills it."""
        assignment = self._assignments.get()
        self._reported_at = -math.inf
        self._on_enter(assignment)
        return assignment

    def close(self) -> None:
        """Close the connection, which ends its thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that receives
        self._socket.close()

    def _receive(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._handle(rank_message.validate_json(line))

    def _handle(self, message: RankMessage) -> None:
        match message:
            case Decide():
                self._decisions.put(message)
            case Enter(assignment=assignment):
                self._assignments.put(assignment)
            case LeaveGeneration(generation=generation):
                with self._lock:
                    self._over, watched = generation, self._watched
                if watched is not None and watched[0] == generation:
                    watched[1]()
