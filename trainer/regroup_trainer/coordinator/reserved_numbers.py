"""Generation numbers, reserved ahead so that a recovery does not wait for the volume. Pure."""

from __future__ import annotations

from regroup_trainer.protocol.generation import GenerationNumber

RETRY_SECONDS = 1.0
"""After the volume refused a reservation."""


class ReservedNumbers:
    """Keeps one number of this term in reserve. A number is used once, and n only rises.

    Each number lies above all that this term reserved before, in whatever container, and above all
    that agents have seen.
    """

    def __init__(self, term: int) -> None:
        self._term = term
        self._floor = 0
        self._requested = False
        self._retry_at = float("-inf")
        self.reserved: GenerationNumber | None = None
        """Reserved and not used yet."""
        self.refusal = ""
        """Why the volume refused the last reservation; empty when it did not."""

    def next_request(self, now: float) -> GenerationNumber | None:
        """The number to request now; None while one is reserved or requested, or before a retry."""
        if self.reserved is not None or self._requested or now < self._retry_at:
            return None
        self._requested = True
        return GenerationNumber(self._term, self._floor + 1)

    def on_granted(self, number: GenerationNumber) -> None:
        """The volume reserved this number for us alone."""
        self._requested, self.refusal = False, ""
        if number.n > self._floor:
            self._floor = number.n
            self.reserved = number

    def on_refused(self, why: str, now: float) -> None:
        """The volume could not be written; the next request follows a little later."""
        self._requested, self.refusal = False, why
        self._retry_at = now + RETRY_SECONDS

    def on_seen(self, number: GenerationNumber | None) -> None:
        """An agent has seen this number, so that ours must be higher."""
        if number is not None and number.term == self._term and number.n >= self._floor:
            self._floor = number.n
            self.reserved = None

    def use(self) -> None:
        """The reserved number has become a generation."""
        self.reserved = None
