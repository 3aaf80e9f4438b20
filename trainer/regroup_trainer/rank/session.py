"""Session: a user's own training loop as a member of an elastic, fault-tolerant job.

    session = Session()
    model = session.prepare(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session.attach(optimizer)
    for inputs, targets in session.batches(dataset, steps=1000, global_batch_size=64):
        session.backward(F.cross_entropy(model(inputs), targets))
        session.step()

Model, loss, optimizer, dataset and loop stay the user's. The session gives each rank its samples,
makes a step of all ranks out of their backward passes, saves, resumes, reports, and ends the
process in order when the job asks for it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from regroup_trainer.data.data_set_fingerprint import DataSetFingerprint
from regroup_trainer.data.order import SampleOrder, mix
from regroup_trainer.data.shares import Shares, ShareSampler
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel import process_group, user_model
from regroup_trainer.parallel.parallelize import reduce_gradients
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.parallel.user_model import UserStrategy
from regroup_trainer.protocol.config import (
    CheckpointPolicy,
    ParallelismConfig,
    TrainConfig,
    TrainingConfig,
)
from regroup_trainer.protocol.exit_codes import TERMINATED
from regroup_trainer.protocol.rank_messages import GenerationOutcome
from regroup_trainer.rank import launch, standalone
from regroup_trainer.rank.busy_reports import USER_SECONDS
from regroup_trainer.rank.custom_loop import CustomLoop
from regroup_trainer.rank.custom_program import Attached, CustomProgram, DataSet, Measure
from regroup_trainer.rank.entering import enter_generation, enter_next_generation
from regroup_trainer.rank.joining import JoinedGeneration, forget_process_group, join
from regroup_trainer.rank.sample_digest import read_digest
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.step.measuring import Samples, to_device
from regroup_trainer.step.plain_values import require_plain
from regroup_trainer.step.randomness import seed_all, seed_tensors
from regroup_trainer.step.state import Stateful


class Session:
    """One program's part in a job; make one, before the model.

    Under an agent (`regroup run`, a TrainingJob) the job says where and when to save. Elsewhere
    (`python`, `torchrun`) `directory` does, by default regroup-runs/<name of the program>, and
    `save_every_steps`. `seed` is that of the order of samples and, at the start, of all random
    numbers. A step whose loss or gradients are not finite is left out, and ten in a row end the
    program; with `non_finite="stop"` the first one does.

    Raises what `is_peer_loss` recognises when the other ranks do not come.
    """

    def __init__(
        self,
        seed: int = 0,
        directory: str | Path | None = None,
        save_every_steps: int = 100,
        non_finite: Literal["skip", "stop"] = "skip",
    ) -> None:
        began = time.monotonic()
        self._seed = seed
        self._non_finite: Literal["skip", "stop"] = non_finite
        self._strategy: UserStrategy = "ddp"
        self._model: nn.Module | None = None
        self._attached: Attached | None = None
        self._loop: CustomLoop | None = None
        """The loop of the present generation, since its first batch."""
        self._done = False
        """Whether all steps are made and saved."""
        self._ended = False
        present = launch.present()
        self._standalone = present is None
        if present is None:
            policy = CheckpointPolicy(interval_steps=save_every_steps)
            self._launch, store = standalone.enter(Path(directory) if directory else None, policy)
            group = process_group.meet(self._launch.assignment, store)
            self._joined = JoinedGeneration(
                self._launch.assignment, self._launch.channel, group, began
            )
            atexit.register(self._leave_alone)
        else:
            self._launch = present
            self._launch.finish, self._launch.give_up = self.finish, self._give_up
            present.busy.end()
            self._joined = join(present.assignment, present.channel, began)
            self._joined.busy.begin("preparing the first step", USER_SECONDS)
        seed_all(seed)

    # --- what a program may ask -------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among all of the job: 0, 1, ... It changes when the job is resized."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job at present."""
        return self._group.size

    @property
    def is_rank0(self) -> bool:
        """Whether this rank speaks for the job: it prints, and writes what is written once."""
        return self._group.is_rank0

    @property
    def leads(self) -> bool:
        """As `is_rank0`; the name that it had in v0.1, for programs of jobs that run."""
        return self.is_rank0

    @property
    def device(self) -> torch.device:
        """Where model and batches are."""
        return self._group.device

    @property
    def steps(self) -> int:
        """Steps done so far, those before a restart included."""
        return self._loop.generation.state.position.step if self._loop else 0

    @property
    def loss(self) -> float | None:
        """Mean loss of the last step over the samples of all ranks; None before the first step, and
        when it is not finite.
        """
        result = self._loop.result if self._loop else None
        return result.commit.loss if result else None

    # --- before the loop --------------------------------------------------------------------------

    def prepare(
        self, model: nn.Module, strategy: UserStrategy = "ddp", **options: Any
    ) -> nn.Module:
        """Replicate or shard the model over the ranks; make the optimizer of the parameters of what
        is returned.

        `ddp` replicates it; `fsdp` shards it, by the elements of its ModuleLists. `options` go to
        DistributedDataParallel or fully_shard.
        """
        self._strategy = strategy
        self._model = user_model.distribute(model, strategy, self._group, options)
        return self._model

    def attach(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        gradient_clip: float = 0.0,
        **states: Stateful,
    ) -> None:
        """What `step` updates: the optimizer, and after it the scheduler, which counts steps.

        `gradient_clip` is the largest norm of the gradient; 0 does not clip. `states` are other
        objects with state_dict and load_state_dict, equal on all ranks, that are saved and restored
        too. Their states hold tensors and plain values.

        Raises ConfigurationError for one that holds something else, by its name.
        """
        if self._model is None:
            raise ConfigurationError(
                "session.attach: there is no model yet: call session.prepare(model) first"
            )
        extra = {**states, **({"scheduler": scheduler} if scheduler is not None else {})}
        for name, stateful in extra.items():
            require_plain(f"session.attach: {name}.state_dict()", stateful.state_dict())
        self._attached = Attached(optimizer, scheduler, gradient_clip, extra)

    # --- the loop ---------------------------------------------------------------------------------

    def batches(
        self,
        dataset: Samples,
        steps: int,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        **loader: Any,
    ) -> Iterator[Any]:
        """This rank's batches, on its device, from where the run stands to the end of step `steps`.

        Each step trains on `global_batch_size` samples over all ranks, however many these are; a
        rank takes its share in batches of `micro_batch_size` at most (default: at once). Call
        `backward` and `step` for each of them. The dataset is shuffled anew in every epoch.
        `loader` goes to torch's DataLoader: collate_fn, num_workers, ...

        Ends the process (SystemExit) when the job asks for it: all is saved then.
        """
        micro_batch = min(micro_batch_size or global_batch_size, global_batch_size)
        program = self._program(dataset, steps, global_batch_size, micro_batch, loader)
        self._loop = CustomLoop(program, enter_generation(self._joined, program))
        while self.steps < steps:
            yield from self._batches_of_generation(self._loop, dataset, loader)
        while not self._done:
            self._together(self._save_result)

    def backward(self, loss: Tensor, weight: int | None = None) -> None:
        """The backward pass of a batch. `loss` is its mean over `weight` items: samples, unless
        said otherwise.

        A loss per token is a mean over the batch's tokens: say how many they are, and each token of
        the global batch counts alike, on whichever rank it is.
        """
        if loss.ndim:
            raise ValueError(
                f"loss has shape {tuple(loss.shape)}: give its mean, and say by `weight` of how "
                "many"
            )
        self._together(lambda loop: loop.backward(loss, weight))

    def step(self) -> bool:
        """Update the model on all ranks, once all batches of a step are through.

        Returns whether a step was made.
        """
        done = self.steps
        self._together(lambda loop: loop.step())
        return self.steps > done

    def evaluate(
        self,
        dataset: Samples,
        measure: Measure,
        batch_size: int = 64,
        **loader: Any,
    ) -> dict[str, float]:
        """Means over a dataset, the same on all ranks; all ranks must call it, in the loop.

        Each rank measures a share. `measure` gets a batch and returns means over its samples by
        name. One named `loss` becomes the job's evaluation loss.
        """
        options = {"batch_size": batch_size, **loader}
        means: list[dict[str, float]] = []

        def act(loop: CustomLoop) -> None:
            program, generation = loop.program, loop.generation
            found = program.measure_together if loop.aligned else program.measure_alone
            with generation.clock.phase("evaluation"):
                means.append(
                    found(
                        generation.group,
                        dataset,
                        measure,
                        dict(options),
                        generation.report_evaluating,
                    )
                )

        while not means:  # again, when a peer is lost on the way
            self._together(act)
        if "loss" in means[0]:
            self._present_loop.generation.report_evaluation(means[0]["loss"])
        return means[0]

    def log(self, **values: float) -> None:
        """Print values beside the step, on rank 0 alone; any rank may call it."""
        if self.is_rank0:
            shown = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            print(f"step {self.steps}: {shown}", flush=True)

    def finish(self) -> None:
        """Save what is not saved yet and leave the process group in order. All ranks must call it.

        Only a program that leaves the loop early, and was started by `python` or `torchrun`, has to
        call it.
        """
        if not self._ended:
            self._end(self._loop.generation.save_result() if self._loop else "completed")

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _group(self) -> GenerationGroup:
        return self._loop.generation.group if self._loop else self._joined.group

    @property
    def _present_loop(self) -> CustomLoop:
        if self._loop is None:
            raise ConfigurationError(
                "session: no batch yet: call this inside `for batch in session.batches(...)`"
            )
        return self._loop

    def _program(
        self,
        dataset: Samples,
        steps: int,
        global_batch_size: int,
        micro_batch_size: int,
        loader: dict[str, Any],
    ) -> CustomProgram:
        if self._attached is None or self._model is None:
            raise ConfigurationError(
                "session.batches: there is no optimizer yet: call session.attach(optimizer) first"
            )
        training = TrainingConfig(
            steps=steps,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            gradient_clip=self._attached.gradient_clip,
            seed=self._seed,
            non_finite=self._non_finite,
        )
        parallelism = ParallelismConfig(strategy=self._strategy)
        kind = f"{type(dataset).__name__} of {len(dataset)}"
        return CustomProgram(
            config=TrainConfig(training=training, parallelism=parallelism),
            model=self._model,
            attached=self._attached,
            samples=len(dataset),
            data=DataSet(DataSetFingerprint(kind, read_digest(dataset, loader))),
        )

    def _batches_of_generation(
        self, loop: CustomLoop, dataset: Samples, loader: dict[str, Any]
    ) -> Iterator[Any]:
        steps = loop.program.config.training.steps
        sampler = self._sampler(loop)
        loop.generation.busy.begin("reading the first batch")
        batches = iter(DataLoader(cast(Dataset[Any], dataset), batch_sampler=sampler, **loader))
        while self.steps < steps and self._loop is loop:
            with loop.generation.clock.phase("data_wait"):
                batch = to_device(next(batches), self.device)
            loop.generation.busy.end()
            part = sampler.parts.popleft()
            seed_tensors(self.device, mix(mix(self._seed) ^ part.first))
            loop.begin(part)
            reduce_gradients(loop.generation.state.model, enabled=part.last)
            yield batch
            if self._loop is loop:
                loop.end()
                if part.last and self.steps < steps:
                    self._together(self._act)

    def _sampler(self, loop: CustomLoop) -> ShareSampler:
        training, position = loop.program.config.training, loop.generation.state.position
        shares = Shares(
            order=SampleOrder(loop.program.samples, self._seed),
            global_batch_size=training.global_batch_size,
            micro_batch_size=training.micro_batch_size,
            rank=self.rank,
            size=self.world_size,
        )
        return ShareSampler(shares, position.samples, training.steps - position.step)

    def _together(self, act: Callable[[CustomLoop], ResidentState | None]) -> None:
        """Do something together with the other ranks. When one of them is lost, or `act` returns
        what stays of a generation that it ended, go on in the next generation.
        """
        loop = self._present_loop
        broken = False
        try:
            resident = act(loop)
        except Exception as error:
            resident, broken = loop.generation.break_off(error), True
            if resident is None:
                raise
        if resident is None:
            return
        if broken:
            loop.generation.park(resident)
        program = loop.program
        generation = enter_next_generation(self._launch.channel, lambda _: program, resident)
        self._loop = CustomLoop(program, generation)

    def _act(self, loop: CustomLoop) -> ResidentState | None:
        """Do what was decided in the last step."""
        outcome = loop.generation.act(loop.decision)
        return self._leave(loop, outcome) if outcome else None

    def _save_result(self, loop: CustomLoop) -> ResidentState | None:
        outcome = loop.generation.save_result()
        if outcome != "completed":
            return self._leave(loop, outcome)
        self._done = True
        return None

    def _leave(self, loop: CustomLoop, outcome: GenerationOutcome) -> ResidentState:
        """End the generation by agreement; the process too, where no state stays for the next."""
        resident = loop.generation.finish(outcome)
        if resident is None:
            self._ended = True
            # Without an agent it was SIGTERM that ended the program before its last step.
            raise SystemExit(TERMINATED if self._standalone else 0)
        forget_process_group()
        return resident

    def _give_up(self, error: BaseException | None = None) -> None:
        """End what runs beside the training of a process that ends, unless that was done."""
        if self._loop is not None:
            self._loop.generation.give_up(error)

    def _leave_alone(self) -> None:
        """Python ends a process that no agent has started."""
        if os.getpid() == self._launch.process:  # what the program forks inherits `atexit`
            self._give_up()
        standalone.leave(self._done)

    def _end(self, outcome: GenerationOutcome) -> None:
        self._ended = True
        if self._loop is not None:
            self._loop.generation.finish(outcome)
        else:
            process_group.leave()
            self._launch.report_end(outcome)
