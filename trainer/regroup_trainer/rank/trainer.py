"""The built-in trainer: a rank's life from its first generation to its last."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from regroup_trainer import data as datasets
from regroup_trainer.data import Dataset
from regroup_trainer.data.batch import BatchPlanner
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.parallel.context_parallel import own_slice
from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank.built_in_program import BuiltInProgram
from regroup_trainer.rank.entering import enter_generation, enter_next_generation
from regroup_trainer.rank.joining import forget_process_group, join
from regroup_trainer.rank.loader import Loader
from regroup_trainer.rank.loop import Loop
from regroup_trainer.rank.running_generation import RunningGeneration
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.volume_access import VolumeAccess


def run(assignment: Assignment, channel: Channel) -> int:
    """Train in as many generations as this process can be part of; returns 0 at the end.

    Finished was sent then. Raises TrainingError, and what `is_peer_loss` recognises when another
    rank or the store went away and the state cannot stay in this process.
    """
    desired = assignment.record.desired
    _prepare_process(desired.train.training.seed)
    volume = VolumeAccess(assignment.record, assignment.rank, channel)
    data = volume.open_data(lambda: datasets.load(desired.train, Path(desired.directory)))

    def program_of(assignment: Assignment) -> BuiltInProgram:
        return BuiltInProgram(assignment.record.desired.train, data)

    def after(resident: ResidentState | None) -> RunningGeneration | None:
        return enter_next_generation(channel, program_of, resident) if resident else None

    generation: RunningGeneration | None = enter_generation(
        join(assignment, channel), program_of(assignment)
    )
    while generation is not None:
        # No variable holds the resident state: it would keep its memory through the next
        # generation.
        generation = after(_train(generation, data))
    forget_process_group()  # now that nothing refers to the last model and its groups
    return 0


def _train(generation: RunningGeneration, data: Dataset) -> ResidentState | None:
    """Train to the end of a generation; returns the state that stays for the next one."""
    try:
        config = generation.stepper.config
        patient = generation.has_agent
        with closing(build_loader(config, data, generation.group, patient)) as loader:
            outcome = Loop(generation, loader).run()
            resident = generation.finish(outcome)
    except Exception as error:
        resident = generation.break_off(error)
        if resident is None:
            generation.give_up(error)
            raise
    else:
        if resident is not None:
            forget_process_group()
        return resident
    generation.park(resident)
    return resident


def build_loader(
    config: TrainConfig, data: Dataset, group: GenerationGroup, is_patient: bool = False
) -> Loader:
    """The rank's view of the samples; `is_patient` as for Loader. Close it in the end."""
    mesh = arrange(config.parallelism, group)
    planner = BatchPlanner(
        order=SampleOrder(data.samples, config.training.seed),
        global_batch_size=config.training.global_batch_size,
        micro_batch_size=config.training.micro_batch_size,
        rank=mesh.data_rank,
        world_size=mesh.data_size,
        multiple=mesh.sizes.pipeline,
        exact=config.training.deterministic == "exact",
    )
    own = own_slice(config.training.sequence_length, mesh)
    return Loader(data, planner, group, own, is_patient)


def _prepare_process(seed: int) -> None:
    # The stacks of C++ threads too, which faulthandler does not know: gloo's, NCCL's.
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    torch.set_num_threads(1)  # as torchrun does: ranks share the cores
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
