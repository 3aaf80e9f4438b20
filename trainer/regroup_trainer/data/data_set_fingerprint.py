"""What a run knows of the data set of a custom loop, to notice another one. Pure.

Its type and size are known for certain. A digest of some samples counts only where processes that
share nothing have read the same: two workers, or two starts of one. A data set that is shuffled
without a seed, or augmented at random, has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

VARY: Final = "vary"
"""In place of a digest: the samples differ between processes, or when they are read again."""
_ALONE = " by one worker"
_TEXT = re.compile(
    rf"(?P<kind>.*?)(?:, samples (?P<samples>{VARY}|[0-9a-f]{{16}})(?P<alone>{_ALONE})?)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class DataSetFingerprint:
    """The fingerprint of a data set, as checkpoints hold it in words."""

    kind: str
    """Its type and size."""
    samples: str = ""
    """A digest of some samples, or VARY; empty: unknown, as in checkpoints of older releases."""
    is_proven: bool = False
    """Whether processes that share nothing have read the same samples."""

    @classmethod
    def parse(cls, text: str) -> DataSetFingerprint:
        """What `str` gave."""
        found = _TEXT.fullmatch(text)
        assert found is not None, "anything is a kind"
        samples = found["samples"] or ""
        proven = bool(samples) and samples != VARY and not found["alone"]
        return cls(found["kind"], samples, proven)

    def __str__(self) -> str:
        if not self.samples:
            return self.kind
        is_alone = self.samples != VARY and not self.is_proven
        return f"{self.kind}, samples {self.samples}{_ALONE if is_alone else ''}"

    def is_doubted_by(self, now: DataSetFingerprint) -> bool:
        """Whether one reading of either is not enough to tell another data set from one whose
        samples vary between processes.
        """
        both = (self, now)
        is_known = all(one.samples not in ("", VARY) and not one.is_proven for one in both)
        return is_known and self.kind == now.kind and self.samples != now.samples

    def continued_by(
        self, now: DataSetFingerprint, read_before: str = ""
    ) -> DataSetFingerprint | None:
        """What is known once another process, which has read `now`, goes on with the run; None: it
        has another data set. `read_before` is the digest of a process between the two, if any.
        """
        if self.kind != now.kind:
            return None
        if VARY in (self.samples, now.samples):
            return DataSetFingerprint(self.kind, VARY)
        if not (self.samples and now.samples):
            return now if now.samples else self
        if self.samples == now.samples:
            return DataSetFingerprint(self.kind, self.samples, is_proven=True)
        if self.is_proven or now.is_proven or now.samples == read_before:
            return None
        return DataSetFingerprint(self.kind, VARY)


def agree(found: Sequence[tuple[str, DataSetFingerprint]]) -> DataSetFingerprint | None:
    """What all ranks know together, from each one's worker and what it has read; None when their
    data sets differ in type or size.

    The ranks of a worker are forks of one process: they prove nothing to each other.
    """
    kinds = {one.kind for _, one in found}
    if len(kinds) > 1:
        return None
    (kind,) = kinds
    digests = {one.samples for _, one in found if one.samples}
    proven = next((one for _, one in found if one.is_proven), None)
    if VARY not in digests and proven is not None:
        return proven
    if len(digests) > 1:
        return DataSetFingerprint(kind, VARY)
    (digest,) = digests or {""}
    readers = {worker for worker, one in found if one.samples}
    return DataSetFingerprint(kind, digest, is_proven=digest not in ("", VARY) and len(readers) > 1)
