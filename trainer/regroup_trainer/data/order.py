"""The order of samples: a function of (seed, epoch, index), never of the world size. Pure.

Any position is found in O(1), so resuming takes no time however far a run has come. Torch- and
numpy-free, so that a history can be audited where neither is installed.

The permutation is a balanced Feistel network over the smallest even number of bits that holds the
index (M. Luby, C. Rackoff, 1988), restricted to an arbitrary size by cycle walking (J. Black, P.
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Its round function is the finalizer of
SplitMix64 (G. Steele et al., 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_MASK = 2**64 - 1
_ROUNDS = 4


def mix(value: int) -> int:
    """SplitMix64's finalizer: a bijection of 64-bit integers whose output looks random."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Permutation:
    """A keyed permutation of range(size)."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self.half = max(1, ((size - 1).bit_length() + 1) // 2)
        key = mix(mix(seed) ^ epoch)
        self.keys = tuple(mix(key + number) for number in range(_ROUNDS))

    def __getitem__(self, index: int) -> int:
        """The image of `index`. Raises IndexError outside range(size)."""
        if not 0 <= index < self.size:
            raise IndexError(index)
        index = self._encrypt(index)
        while (
            index >= self.size
        ):  # at most four walks on average, since the domain is below 4 x size
            index = self._encrypt(index)
        return index

    def _encrypt(self, value: int) -> int:
        mask = (1 << self.half) - 1
        left, right = value >> self.half, value & mask
        for key in self.keys:
            left, right = right, left ^ (mix(right ^ key) & mask)
        return (left << self.half) | right


_permutation = lru_cache(maxsize=4)(Permutation)


@dataclass(frozen=True)
class SampleOrder:
    """The endless stream of samples: position 0, 1, ... over all epochs."""

    samples: int
    """Samples per epoch."""
    seed: int

    def sample(self, position: int) -> int:
        """The sample id at a position of the stream."""
        epoch, index = divmod(position, self.samples)
        return _permutation(self.samples, self.seed, epoch)[index]

    def ids(self, positions: range) -> list[int]:
        """The sample ids at these positions."""
        return [self.sample(position) for position in positions]


def digest(ids: list[int]) -> int:
    """A hash of a set of samples. The hash of two sets together is the sum of theirs.

    Each sample contributes less than 2^32, so sums over up to 2^21 samples are exact in float64.
    """
    return sum(mix(sample) >> 32 for sample in ids)
