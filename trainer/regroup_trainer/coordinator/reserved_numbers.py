"""Generation numbers, reserved ahead so that a recovery does not wait for the volume. Pure."""

from __future__ import annotations

from collections import deque

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.backoff import retry_seconds

NUMBERS_AHEAD = 8
"""So many generations can follow one another while the volume is full."""
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
"""After the volume refused a reservation; doubled each time that it refuses again."""


class ReservedNumbers:
    """Keeps some numbers of this term in reserve. A number is used once, and n only rises.

    Each number lies above all that this term reserved before, in whatever container, and above all
    that agents have seen.
    """

    def __init__(self, term: int) -> None:
        self._term = term
        self._floor = 0
        self._requested = False
        self._refusals = 0
        self._retry_at = float("-inf")
        self._reserved: deque[GenerationNumber] = deque()
        self._is_doubted = False
        self._asked_before_doubt = False
        """Whether the answer to the open request says nothing about a successor."""
        self.refusal = ""
        """Why the volume gives no further number; empty when it does."""
        self.is_unanswered = False
        """Whether it has not answered at all."""

    @property
    def reserved(self) -> GenerationNumber | None:
        """The next number; None when there is none in reserve, or while the reserve is doubted."""
        return self._reserved[0] if self._reserved and not self._is_doubted else None

    @property
    def ahead(self) -> int:
        """How many numbers are in reserve."""
        return len(self._reserved)

    def next_request(self, now: float) -> GenerationNumber | None:
        """The number to request now; None while enough are reserved, one is requested, or a retry
        is not due. A volume that has refused is asked until it grants again: whoever reads
        `refusal` learns by it that the fault is over.
        """
        is_well = not self._is_doubted and not self.refusal
        enough = len(self._reserved) >= NUMBERS_AHEAD and is_well
        if enough or self._requested or now < self._retry_at:
            return None
        self._requested = True
        return GenerationNumber(self._term, self._floor + 1)

    def doubt(self) -> None:
        """A successor may have begun: no number is used until the volume has answered, which knows.
        Where it refuses, the numbers in reserve have to do. It is asked anew: it may have answered
        an open request before the successor came.
        """
        self._is_doubted, self._asked_before_doubt = True, self._requested

    def on_granted(self, number: GenerationNumber) -> None:
        """The volume reserved this number for us alone."""
        self._requested, self.refusal, self._refusals = False, "", 0
        self.is_unanswered = False
        self._is_doubted, self._asked_before_doubt = self._asked_before_doubt, False
        if number.n > self._floor:
            self._floor = number.n
            self._reserved.append(number)

    def on_refused(self, why: str, now: float) -> None:
        """The volume could not be written; the next request follows later."""
        self._requested, self.refusal, self.is_unanswered = False, why, False
        self._is_doubted = self._asked_before_doubt = False
        self._refusals += 1
        pause = retry_seconds(self._refusals, RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._retry_at = now + pause

    def on_unanswered(self, why: str) -> None:
        """The volume has not answered a request for long. The request stands."""
        self.refusal, self.is_unanswered = why, True
        self._is_doubted = self._asked_before_doubt = False

    def on_seen(self, number: GenerationNumber | None) -> None:
        """An agent has seen this number, so that ours must be higher."""
        if number is None or number.term != self._term:
            return
        self._floor = max(self._floor, number.n)
        while self._reserved and self._reserved[0].n <= number.n:
            self._reserved.popleft()

    def use(self) -> None:
        """The next number has become a generation."""
        self._reserved.popleft()
