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
from regroup_trainer.attention import choose_attention
from regroup_trainer.batch import BatchPlanner
from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint.export import initialize_from
from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.config import TrainConfig
from regroup_trainer.context_parallel import own_slice
from regroup_trainer.contract import Assignment
from regroup_trainer.data import Dataset
from regroup_trainer.engine import Ending, Engine, Trail
from regroup_trainer.loader import Loader
from regroup_trainer.loop import Loop
from regroup_trainer.mesh import arrange
from regroup_trainer.optimizer import build_optimizer
from regroup_trainer.order import SampleOrder
from regroup_trainer.parallelize import parallelize, parallelize_optimizer
from regroup_trainer.recovery import outlives_its_world
from regroup_trainer.state import Position, TrainState
from regroup_trainer.step import Stepper
from regroup_trainer.survivor import (
    Survivor,
    carry_over,
    forget_world,
    join,
    let_commits_arrive,
    lost_its_world,
    stand_by,
    survivor_of,
    take_over,
)
from regroup_trainer.world import World, tell_loss


def run(assignment: Assignment, channel: Channel) -> int:
    """Train with the built-in trainer, in as many generations as this process can be part of; returns 0 at the end.

    Finished was sent then. Raises TrainingError; what `world.is_peer_loss` recognises when another rank, or the store,
    went away or a newer generation has begun, and the state cannot live on here.
    """
    config = assignment.record.desired.train
    _prepare_process(config.training.seed)
    data = datasets.load(config, Path(assignment.record.desired.directory))
    survivor: Survivor | None = None
    while True:
        survivor = _Generation(assignment, channel, data).run(survivor)
        if survivor is None:
            return 0
        assignment = channel.next_assignment()


class _Generation:
    """This rank's life in one generation."""

    def __init__(self, assignment: Assignment, channel: Channel, data: Dataset) -> None:
        self._assignment = assignment
        self._channel = channel
        self._data = data
        self._config = assignment.record.desired.train
        self._number = assignment.record.number
        self._start = time.monotonic()
        self._survivor: Survivor | None = None
        """This rank, as soon as its state is that of this generation."""

    def run(self, survivor: Survivor | None) -> Survivor | None:
        """Train, with the state of a survivor if there is one; returns what survives, None at the end of all training.

        Raises as the module's `run` does.
        """
        try:
            ending = self._train(survivor)
        except Exception as error:
            survivor = self._survivor or survivor
            if survivor is None or not survivor.whole or not lost_its_world(error, self._channel):
                raise
            tell_loss(self._assignment.rank, error)
        else:
            forget_world()
            return self._survivor if ending == "leave" else None
        stand_by(survivor, self._assignment, self._channel)
        return survivor

    def _train(self, survivor: Survivor | None) -> Ending:
        config, data = self._config, self._data
        world = join(self._assignment, self._channel)
        attention = choose_attention(config, world.device)
        keeps = self._channel.lasting and outlives_its_world(config.parallelism)
        trail = (survivor.trail if survivor else None) or Trail()
        engine = Engine(self._assignment, world, self._channel, run_identity(config, data), trail if keeps else None)

        def state_here() -> TrainState:
            return carry_over(survivor, config, world, self._build)

        taken = take_over(state_here, engine, self._assignment.record.rung, config, survivor)
        state = taken.state if taken else self._build(world)
        stepper = Stepper(state, config, world, data.targets_per_sample)
        if keeps:
            let_commits_arrive(stepper, self._assignment, self._channel)
        if taken:
            engine.take_over(state, taken.agreement, self._start, attention=attention)
        else:
            engine.restore(state, self._start, attention=attention)
            if config.model.initialize_from and state.position.step == 0:
                initialize_from(state.model, Path(config.model.initialize_from), config.model.name)
        self._survivor = survivor_of(self._number, engine, stepper)
        with closing(build_loader(config, data, world)) as loader, engine:
            ending = Loop(engine, loader, stepper).run()
            if ending != "leave" or engine.trail is None:
                self._survivor = None
            engine.finish(ending, self._survivor.kept() if self._survivor else None)
        return ending

    def _build(self, world: World) -> TrainState:
        return build_state(self._config, world, self._data.classes)


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
