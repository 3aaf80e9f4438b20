"""The life of a rank in one generation: join, build, restore, train, leave."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from regroup_trainer import data as datasets
from regroup_trainer import models
from regroup_trainer import world as worlds
from regroup_trainer.attention import choose_attention
from regroup_trainer.batch import BatchPlanner
from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint.export import initialize_from
from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.config import TrainConfig
from regroup_trainer.context_parallel import own_slice
from regroup_trainer.contract import Assignment
from regroup_trainer.data import Dataset
from regroup_trainer.engine import Engine
from regroup_trainer.loader import Loader
from regroup_trainer.loop import Loop
from regroup_trainer.mesh import arrange
from regroup_trainer.optimizer import build_optimizer
from regroup_trainer.order import SampleOrder
from regroup_trainer.parallelize import parallelize, parallelize_optimizer
from regroup_trainer.state import Position, TrainState
from regroup_trainer.world import World


def run(assignment: Assignment, channel: Channel) -> int:
    """Train with the built-in trainer; returns 0 after Finished was sent.

    Raises TrainingError; what `world.is_peer_loss` recognises when another rank, or the store, went away or a newer
    generation has begun.
    """
    start = time.monotonic()
    config = assignment.record.desired.train
    _prepare_process(config.training.seed)
    data = datasets.load(config, Path(assignment.record.desired.directory))
    world = worlds.join(assignment)
    attention = choose_attention(config, world.device)
    state = build_state(config, world, data.classes)
    engine = Engine(assignment, world, channel, run_identity(config, data))
    engine.restore(state, since=start, attention=attention)
    if config.model.initialize_from and state.position.step == 0:
        initialize_from(state.model, Path(config.model.initialize_from), config.model.name)
    with closing(build_loader(config, data, world)) as loader, engine:
        engine.finish(Loop(engine, loader, state, config, world).run())
    return 0


def build_state(config: TrainConfig, world: World, classes: int) -> TrainState:
    """The state before the first step: the same parameters for every world and strategy."""
    model = parallelize(models.build(config.model, classes), config, world)
    optimizer = parallelize_optimizer(build_optimizer(model, config.optimizer), config)
    return TrainState(model, optimizer, Position())


def run_identity(config: TrainConfig, data: Dataset) -> RunIdentity:
    """What is trained, as its checkpoints know it."""
    order = DataIdentity(
        fingerprint=data.fingerprint,
        samples=data.samples,
        seed=config.training.seed,
        global_batch_size=config.training.global_batch_size,
        sequence_length=config.training.sequence_length,
    )
    model = {"name": config.model.name, **config.model.size.model_dump()}
    return RunIdentity(model, config.parallelism.strategy, order)


def build_loader(config: TrainConfig, data: Dataset, world: World) -> Loader:
    """The rank's view of the samples."""
    mesh = arrange(config.parallelism, world)
    planner = BatchPlanner(
        order=SampleOrder(data.samples, config.training.seed),
        global_batch_size=config.training.global_batch_size,
        micro_batch_size=config.training.micro_batch_size,
        rank=mesh.data_rank,
        world_size=mesh.data_size,
        multiple=mesh.sizes.pipeline,
        exact=config.training.deterministic == "exact",
    )
    return Loader(data, planner, world, own_slice(config.training.sequence_length, mesh))


def _prepare_process(seed: int) -> None:
    torch.set_num_threads(1)  # as torchrun does: ranks share the cores
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
