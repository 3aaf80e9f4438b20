"""Generation numbers: one is always claimed ahead, so that a recovery never waits for the volume."""

from __future__ import annotations

from regroup_trainer.contract import GenerationNumber

RETRY_SECONDS = 1.0


class ClaimedNumbers:
    """n only rises: above every claim of this term, ours or an earlier container's, and all that agents have seen."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._floor = 0
        self._asked = False
        self._again_at = float("-inf")
        self.reserved: GenerationNumber | None = None
        """Claimed and not used."""

    def wanted(self, now: float) -> GenerationNumber | None:
        """The number to claim now; None when one is reserved, asked for, or has just been refused."""
        if self.reserved is not None or self._asked or now < self._again_at:
            return None
        self._asked = True
        return GenerationNumber(self._term, self._floor + 1)

    def claimed(self, number: GenerationNumber) -> None:
        """The volume granted it."""
        self._asked = False
        if number.n > self._floor:
            self._floor = number.n
            self.reserved = number

    def refused(self, now: float) -> None:
        """The volume could not be written; try again a little later."""
        self._asked = False
        self._again_at = now + RETRY_SECONDS

    def seen(self, number: GenerationNumber | None) -> None:
        """An agent has seen this number: ours must be higher."""
        if number is not None and number.term == self._term and number.n >= self._floor:
            self._floor = number.n
            self.reserved = None

    def use(self) -> None:
        """The reserved number has become a generation."""
        self.reserved = None
