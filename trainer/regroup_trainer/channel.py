"""The line between a rank and its agent: reports go up, orders come down, over a Unix socket, one JSON a line.

This is the rank's end. Nothing here blocks a step: a report is one small write, and a thread listens. What cannot wait
for the training, since it may be stuck in a collective, happens in that thread.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from regroup_trainer.commit_page import CommitPage
from regroup_trainer.contract import (
    Assignment,
    Decide,
    Enter,
    GenerationNumber,
    LeaveWorld,
    RankMessage,
    RankReport,
    rank_message,
)

PROGRESS_SECONDS = 0.5
"""A rank tells of its steps no more often; each message costs agent and coordinator half a millisecond."""


class Sender(Protocol):
    """Takes reports."""

    def send(self, report: RankReport) -> None:
        """Tell the agent, from any thread. Never raises: a rank without an agent is about to be killed anyway."""


class Channel(Sender, Protocol):
    """What a rank needs of it; tests use a list."""

    lasting: bool
    """Whether another generation may follow in this process."""

    def committed(self, step: int, time: float) -> bool:
        """Note a step committed at this wall-clock time; whether a Progress of it shall be sent now."""

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Call `act`, in another thread or at once, when this generation is known to be over."""

    def is_over(self) -> bool:
        """Whether the generation of which `when_over` was asked last is known to be over."""

    def next_assignment(self) -> Assignment:
        """Wait for this process's place in the next generation. Only for a lasting channel."""


class AgentChannel:
    """A connection to the agent's Unix socket at `path`. Raises OSError when nobody listens there.

    `page` is where the last commit is noted, so that it is known also of a rank that was killed; `on_enter` hears of
    every generation that this process enters later.
    """

    lasting = True

    def __init__(self, path: str, page: CommitPage, on_enter: Callable[[Assignment], None] = lambda _: None) -> None:
        self._page = page
        self._on_enter = on_enter
        self._told_at = -math.inf
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
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def send(self, report: RankReport) -> None:
        """Tell the agent."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(report.model_dump_json().encode() + b"\n")

    def committed(self, step: int, time: float) -> bool:
        """Note a committed step; whether so much time has passed that it shall be told."""
        self._page.write(step, time)
        if 0.0 <= time - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = time
        return True

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""
        decisions = []
        while not self._decisions.empty():
            decisions.append(self._decisions.get())
        return decisions

    def when_over(self, generation: GenerationNumber, act: Callable[[], None]) -> None:
        """Call `act` as soon as the agent says that this generation is over; at once if it has said so."""
        with self._lock:
            self._watched = (generation, act)
            over = self._over == generation
        if over:
            act()

    def is_over(self) -> bool:
        """As the agent has said."""
        with self._lock:
            return self._watched is not None and self._over == self._watched[0]

    def next_assignment(self) -> Assignment:
        """Wait for the next generation; an agent that has none for this process kills it."""
        assignment = self._assignments.get()
        self._told_at = -math.inf
        self._on_enter(assignment)
        return assignment

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._obey(rank_message.validate_json(line))

    def _obey(self, message: RankMessage) -> None:
        match message:
            case Decide():
                self._decisions.put(message)
            case Enter(assignment=assignment):
                self._assignments.put(assignment)
            case LeaveWorld(generation=generation):
                with self._lock:
                    self._over, watched = generation, self._watched
                if watched is not None and watched[0] == generation:
                    watched[1]()
