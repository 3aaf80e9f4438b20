"""The life of a rank in one generation: join, build, restore, train, leave."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

from regroup_trainer import data as datasets
from regroup_trainer import models
from regroup_trainer import world as worlds
from regroup_trainer.batch import BatchPlanner
from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint.layout import DataIdentity, Layout
from regroup_trainer.checkpoint.load import Choice, Restorer
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import PEER_LOST_EXIT_CODE, Assignment, Finished, Restored
from regroup_trainer.data import Dataset
from regroup_trainer.errors import TrainingError
from regroup_trainer.loader import Loader
from regroup_trainer.loop import Loop, Setting
from regroup_trainer.mesh import arrange
from regroup_trainer.optimizer import build_optimizer
from regroup_trainer.order import SampleOrder
from regroup_trainer.parallelize import parallelize
from regroup_trainer.state import Position, TrainState
from regroup_trainer.support import require_supported
from regroup_trainer.world import World


def run(assignment: Assignment, channel: Channel) -> int:
    """Be this rank of this generation, in a process that ends with the exit code returned.

    0 after Finished was sent; PEER_LOST_EXIT_CODE when another rank, or the store, went away or a newer generation has
    begun; that of a TrainingError, with its sentence on standard error. Other errors are raised.
    """
    try:
        return _run(assignment, channel)
    except TrainingError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        if not worlds.is_peer_loss(error):
            raise
        print(f"rank {assignment.rank} lost its world: {error}", file=sys.stderr, flush=True)
        return PEER_LOST_EXIT_CODE


def _run(assignment: Assignment, channel: Channel) -> int:
    start = time.monotonic()
    config = assignment.record.desired.train
    require_supported(config)
    _prepare_process(config.training.seed)
    data = datasets.load(config, Path(assignment.record.desired.directory))
    world = worlds.join(assignment)
    state = build_state(config, world, data.classes)
    layout = Layout(Path(assignment.record.desired.directory))
    identity = data_identity(config, data)
    choice = Restorer(layout, assignment.record, world, identity).restore(state)
    channel.send(_restored(assignment, state, choice, time.monotonic() - start))
    saved_step = choice.manifest.step if choice.manifest else None
    setting = Setting(assignment.record, world, build_loader(config, data, world), identity, layout, saved_step)
    ending = Loop(setting, state, channel).run()
    worlds.leave()
    channel.send(
        Finished(generation=assignment.record.number, rank=assignment.rank, step=state.position.step, reason=ending)
    )
    return 0


def build_state(config: TrainConfig, world: World, classes: int) -> TrainState:
    """The state before the first step: the same parameters for every world and strategy."""
    model = parallelize(models.build(config.model, classes), config, world)
    return TrainState(model, build_optimizer(model, config.optimizer), Position())


def data_identity(config: TrainConfig, data: Dataset) -> DataIdentity:
    """What the order of samples depends on."""
    return DataIdentity(
        fingerprint=data.fingerprint,
        samples=data.samples,
        seed=config.training.seed,
        global_batch_size=config.training.global_batch_size,
        sequence_length=config.training.sequence_length,
    )


def build_loader(config: TrainConfig, data: Dataset, world: World) -> Loader:
    """The rank's view of the samples."""
    mesh = arrange(config.parallelism, world)
    planner = BatchPlanner(
        order=SampleOrder(data.samples, config.training.seed),
        global_batch_size=config.training.global_batch_size,
        micro_batch_size=config.training.micro_batch_size,
        rank=mesh.data_rank,
        world_size=mesh.data_size,
    )
    return Loader(data, planner, world)


def _prepare_process(seed: int) -> None:
    torch.set_num_threads(1)  # as torchrun does: ranks share the cores
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _restored(assignment: Assignment, state: TrainState, choice: Choice, seconds: float) -> Restored:
    report = Restored(
        generation=assignment.record.number, rank=assignment.rank, step=state.position.step, seconds=seconds
    )
    if assignment.rank != 0:
        return report
    return report.model_copy(
        update={
            "path": str(choice.path) if choice.path else None,
            "skipped": choice.skipped,
            "parameters": sum(parameter.numel() for parameter in state.model.parameters()),
        }
    )
