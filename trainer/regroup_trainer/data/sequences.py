"""A run of tokens divided into samples for the prediction of the next token.

Sample i is the T + 1 tokens from i x T on: inputs and, shifted by one, targets. A sample may cross
files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regroup_trainer.data.dataset import Arrays
from regroup_trainer.data.order_arrays import Ids
from regroup_trainer.data.token_run import Indices, TokenRun, TokensInFile
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.config import DataConfig


@dataclass(frozen=True)
class TokenSpan:
    """The tokens [first, end) of a run."""

    run: TokenRun
    first: int
    end: int

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.end - self.first

    def samples(self, sequence_length: int) -> int:
        """The number of whole samples."""
        return max(0, (self.length - 1) // sequence_length)

    def read(self, ids: Ids, sequence_length: int) -> Indices:
        """[B, T + 1]. Raises DataError, OSError."""
        starts = self.first + ids * sequence_length
        return self.run.windows(starts, sequence_length + 1)


@dataclass(frozen=True)
class Corpus:
    """All tokens of a source, in two parts."""

    training: TokenSpan
    held_out: TokenSpan
    classes: int
    """Tokens are below this."""
    fingerprint: str


def split(run: TokenRun, held_out_percent: int) -> tuple[TokenSpan, TokenSpan]:
    """The run without its tail, and the tail."""
    end = len(run) * (100 - held_out_percent) // 100
    return TokenSpan(run, 0, end), TokenSpan(run, end, len(run))


def whole(run: TokenRun) -> TokenSpan:
    """The whole run."""
    return TokenSpan(run, 0, len(run))


@dataclass(frozen=True)
class Sequences:
    """Samples of `sequence_length` tokens (T)."""

    corpus: Corpus
    sequence_length: int

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokens, without the sequence length."""
        return self.corpus.fingerprint

    @property
    def samples(self) -> int:
        """Training samples per epoch."""
        return self.corpus.training.samples(self.sequence_length)

    @property
    def held_out_samples(self) -> int:
        """Samples for evaluation."""
        return self.corpus.held_out.samples(self.sequence_length)

    @property
    def targets_per_sample(self) -> int:
        """T."""
        return self.sequence_length

    @property
    def classes(self) -> int:
        """Size of the vocabulary."""
        return self.corpus.classes

    def read_training(self, ids: Ids) -> Arrays:
        """Training samples, [B, T]. Raises DataError, OSError."""
        return self._read(self.corpus.training, ids)

    def read_held_out(self, ids: Ids) -> Arrays:
        """Held-out samples, [B, T]. Raises DataError, OSError."""
        return self._read(self.corpus.held_out, ids)

    def _read(self, span: TokenSpan, ids: Ids) -> Arrays:
        tokens = span.read(ids, self.sequence_length)
        if (
            tokens.max() >= self.classes
        ):  # an embedding would fail with a worse message, and on a GPU without any
            raise self._foreign_token(span, ids, tokens)
        return Arrays(tokens[:, :-1], tokens[:, 1:])

    def _foreign_token(self, span: TokenSpan, ids: Ids, tokens: Indices) -> DataError:
        row, column = (int(index) for index in np.argwhere(tokens >= self.classes)[0])
        part = span.run.part_at(span.first + int(ids[row]) * self.sequence_length + column)
        place = f"in {part.path}" if isinstance(part, TokensInFile) else f"in sample {ids[row]}"
        problem = f"token {tokens[row, column]} {place} is outside the vocabulary of {self.classes}"
        return DataError(
            f"data.classes: {problem}: give the size of the vocabulary that the tokens were made "
            "with"
        )


def require_samples(sequences: Sequences, config: DataConfig, evaluate: bool) -> Sequences:
    """The samples. Raises DataError when there is no training sample, or no held-out one though
    evaluation needs it.
    """
    needed = (
        f"too few for one sample of {sequences.sequence_length + 1} (training.sequenceLength + 1)"
    )
    corpus = sequences.corpus
    if sequences.samples < 1:
        raise DataError(
            f"data.paths: {corpus.training.length} tokens for training are {needed}: give more, or "
            "a shorter sequence"
        )
    if evaluate and sequences.held_out_samples < 1:
        source = (
            "data.heldOutPaths:"
            if config.held_out_paths
            else f"data.heldOutPercent: {config.held_out_percent} %"
        )
        raise DataError(
            f"{source} keeps {corpus.held_out.length} tokens for evaluation, {needed}: hold out "
            "more, "
            f"or set evaluation.everySteps to 0"
        )
    return sequences
