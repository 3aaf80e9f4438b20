"""How well a byte-level GPT learns the text that Regroup brings, within minutes on a CPU.

    make bench NAME=learning [ARGS=--quick]
    python -m bench.learning_picture    # draws the curve of the last whole run

The text is the source code and documentation of Regroup v0.1, 2.5 MB (`data/default_text.py`). Two
ranks (DDP) train on its first 95 %. `bits_per_byte` is the final cost of the last 5 %, which they
never see. It is the mean of -log2 of the probability given to each byte, from at most 256 bytes of
context. Subjects gzip and xz compress the same last 5 %, at their highest level.
`training_seconds` count steps and waiting for data; `wall_seconds` start and evaluations too.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.harness import RESULTS, Plan, Values, command
from regroup.local.local_run import LocalRun
from regroup_trainer import data as datasets
from regroup_trainer.protocol.config import (
    CheckpointPolicy,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    TrainingConfig,
)
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.job_status import CoordinatorStatus

CURVE = RESULTS / "learning_curve.json"
UNITS = {"bits_per_byte": "bit", "training_seconds": "s", "wall_seconds": "s"}
WHOLE, SHORT = "default-text", "default-text-short"
RANKS = 2


def recipe(case: str) -> TrainConfig:
    """A model of 1M parameters that sees 8M bytes; or a few steps of a tiny one."""
    whole = case == WHOLE
    return TrainConfig(
        model=ModelConfig(preset="1m" if whole else "tiny"),
        optimizer=OptimizerConfig(name="muon", learning_rate=4e-3, beta2=0.98, warmup_steps=50),
        training=TrainingConfig(
            steps=4000 if whole else 20,
            global_batch_size=8,
            micro_batch_size=4,
            sequence_length=256,
        ),
        evaluation=EvaluationConfig(
            every_steps=250 if whole else 10, samples=2**20 if whole else 16
        ),
    )


@dataclass
class Curve:
    """Held-out bits per byte over the course of a training."""

    train: TrainConfig
    trained_megabytes: list[float] = field(default_factory=list)
    bits_per_byte: list[float] = field(default_factory=list)
    training_seconds: float = 0.0
    _step: int = 0

    def look(self, status: CoordinatorStatus) -> None:
        """Record a new evaluation."""
        if (
            status.evaluation is None
            or status.progress is None
            or status.evaluation.step == self._step
        ):
            return
        self._step = status.evaluation.step
        spent, training = status.progress.seconds, self.train.training
        self.training_seconds = spent.get("step", 0.0) + spent.get("data_wait", 0.0)
        bytes_of_step = training.global_batch_size * training.sequence_length
        self.trained_megabytes.append(self._step * bytes_of_step / 1e6)
        self.bits_per_byte.append(status.evaluation.loss / math.log(2))


def train(case: str) -> Values:
    """Train by the recipe, as `regroup run` does."""
    curve, start = Curve(recipe(case)), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        desired = Desired(
            revision=1,
            namespace="bench",
            job="learning",
            replicas=RANKS,
            min_replicas=RANKS,
            max_replicas=RANKS,
            train=curve.train,
            checkpoint=CheckpointPolicy(interval_seconds=10**6),
            directory=folder,
        )
        outcome = asyncio.run(LocalRun(desired, on_status=curve.look).run())
    if outcome.result != "completed":
        raise RuntimeError(f"the training did not complete: {outcome.message}")
    if case == WHOLE:
        keep(curve)
    return {
        "bits_per_byte": curve.bits_per_byte[-1],
        "training_seconds": curve.training_seconds,
        "wall_seconds": time.monotonic() - start,
    }


def keep(curve: Curve) -> None:
    """Write the curve, with the compressors' lines, for the picture."""
    text = held_out_text(WHOLE)
    document = {
        "trained_megabytes": curve.trained_megabytes,
        "bits_per_byte": curve.bits_per_byte,
        **{name: bits_per_byte(compress, text) for name, compress in COMPRESSORS.items()},
        "train": curve.train.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    CURVE.write_text(json.dumps(document, indent=1) + "\n")


def held_out_text(case: str) -> bytes:
    """The held-out text that the model predicts."""
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        data = datasets.load(recipe(case), Path(folder))
        return (
            data.read_held_out(np.arange(data.held_out_samples)).targets.astype("uint8").tobytes()
        )


def bits_per_byte(compress: Callable[[bytes], bytes], text: bytes) -> float:
    """Compressed bits per byte of the text."""
    return 8 * len(compress(text)) / len(text)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda text: gzip.compress(text, 9),
    "xz": lambda text: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
}


def plan(quick: bool) -> Plan:
    """One training; a quick one of seconds, under a name that says so."""
    return Plan("learning", (SHORT if quick else WHOLE,), ("regroup", *COMPRESSORS), UNITS, 1)


def measure(case: str, subject: str) -> Values:
    """Train, or compress."""
    if subject == "regroup":
        return train(case)
    return {"bits_per_byte": bits_per_byte(COMPRESSORS[subject], held_out_text(case))}


main = command(plan, measure)

if __name__ == "__main__":
    main()
