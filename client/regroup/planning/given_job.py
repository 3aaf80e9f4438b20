"""Reads a TrainingJob that somebody has: what it trains, and how it is arranged today."""

from __future__ import annotations

from collections.abc import Iterator

from regroup.planning.hardware import Cluster
from regroup.planning.layouts import PLANNED, Grid, Layout
from regroup_operator.api.spec import TrainingJobSpec
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.strategies import STRATEGIES

GPT2_VOCABULARY = 50257
"""The default vocabulary of a file of tokens."""


def trainer_of(spec: TrainingJobSpec) -> TrainConfig:
    """What the job trains. Raises ValueError for what no plan can count, by the field's name."""
    if spec.trainer is None:
        raise ValueError(
            "spec.trainer: is missing: a plan knows the models of the built-in trainer; for a "
            "script give --params or --model instead of the file"
        )
    if unplanned := "; ".join(_unplanned(spec.trainer)):
        raise ValueError(unplanned)
    return spec.trainer


def _unplanned(config: TrainConfig) -> Iterator[str]:
    """Options that change memory or time in a way that the estimates do not know."""
    layout = config.parallelism
    for field, differs, default in (
        ("parallelism.cpuOffload", layout.cpu_offload, "false"),
        ("parallelism.reshardAfterForward", not layout.reshard_after_forward, "true"),
        ("parallelism.pipelineSchedule", layout.pipeline_schedule != "1f1b", "1f1b"),
        ("parallelism.gradientHook", layout.gradient_hook != "none", "none"),
        ("training.deterministic", config.training.deterministic != "rounding", "rounding"),
    ):
        if differs:
            yield f"spec.trainer.{field}: is planned only as {default}: set it to that for the plan"


def vocabulary_of(config: TrainConfig, asked: int | None) -> int:
    """The vocabulary of the data; `asked` where only the files of the job know it.

    Raises ValueError when the job says another one.
    """
    data, known = config.data, _known_vocabulary(config)
    if known is None:
        return asked or GPT2_VOCABULARY
    if asked not in (None, known):
        field = "classes" if data.classes or data.source == "synthetic" else "tokenizer"
        raise ValueError(
            f"--vocabulary {asked}: the job's data has {known}: leave the option out, or change "
            f"spec.trainer.data.{field}"
        )
    return known


def _known_vocabulary(config: TrainConfig) -> int | None:
    """None where files decide when they are read."""
    data = config.data
    if data.classes:
        return data.classes
    if data.source in ("tokens", "huggingface"):
        return None
    # Public sizes of the two byte-pair encodings; 256 bytes else.
    return {"cl100k": 100277, "o200k": 200019}.get(data.tokenizer, 256)


def layout_of(config: TrainConfig, machines: Cluster) -> Layout:
    """The layout that the job asks for. Raises ValueError when it does not fit these machines."""
    parallelism, unit = config.parallelism, config.parallelism.replica_group_ranks
    strategy = STRATEGIES[parallelism.strategy]
    if machines.devices % unit or not strategy.rank_per_device:
        raise ValueError(
            f"spec.trainer.parallelism: cannot be planned for {machines.devices} ranks: use "
            f"{', '.join(PLANNED)}, and a multiple of {unit} ranks"
        )
    replicate, shard = strategy.data_sizes(machines.devices // unit, parallelism.shard_group_size)
    grid = Grid(
        strategy=parallelism.strategy,
        tensor=parallelism.tensor_parallel,
        pipeline=parallelism.pipeline_parallel,
        shard=shard,
        replicate=replicate,
        context=parallelism.context_parallel,
    )
    return Layout(grid, config.training.micro_batch_size, config.training.activation_checkpointing)
