"""Session: a person's own training loop as a member of an elastic, fault-tolerant job.

    session = Session()
    model = session.prepare(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session.attach(optimizer)
    for inputs, targets in session.batches(dataset, steps=1000, global_batch_size=64):
        session.backward(F.cross_entropy(model(inputs), targets))
        session.step()

Model, loss, optimizer, dataset and loop stay the user's. The session gives each rank its samples, makes a step of all
ranks out of their backward passes, saves, resumes, reports, and ends the process in order when the job asks for it.
What lies below is what the built-in trainer uses: `engine`, `step`, `order`, `checkpoint`.
"""

from __future__ import annotations

import atexit
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from regroup_trainer import launch, own_model, solo
from regroup_trainer import world as worlds
from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.config import CheckpointPolicy, ParallelismConfig, TrainConfig, TrainingConfig
from regroup_trainer.contract import Decision, GenerationNumber
from regroup_trainer.engine import Ending, Engine, Trail
from regroup_trainer.errors import ConfigurationError, GenerationOverError
from regroup_trainer.measuring import Samples, measure_all, to_device
from regroup_trainer.order import SampleOrder, mix
from regroup_trainer.own_model import OwnStrategy, Replicated
from regroup_trainer.parallelize import reduce_gradients
from regroup_trainer.randomness import seed_all, seed_tensors
from regroup_trainer.shares import Part, Shares, ShareSampler
from regroup_trainer.state import Position, Stateful, TrainState
from regroup_trainer.step import Share, Stepper, StepResult
from regroup_trainer.survivor import (
    Survivor,
    forget_world,
    join,
    let_commits_arrive,
    lost_its_world,
    stand_by,
    survivor_of,
    take_over,
)
from regroup_trainer.world import tell_loss

_Measure = Callable[[Any], Mapping[str, Tensor]]
_Means = dict[str, float]
STOPPED_EXIT_CODE = 143
"""Of a program without an agent that saved and ended since it got SIGTERM: it has not done all its steps."""


class Session:
    """One program's part in a job; make one, before the model.

    Under an agent (`regroup run`, a TrainingJob) the job says where and when to save. Elsewhere (`python`, `torchrun`)
    `directory` does, by default regroup-runs/<name of the program>, and `save_every_steps`. `seed` is that of the order
    of samples and, at the start, of all random numbers. A step whose loss or gradients are not finite is left out, ten
    in a row end the program; with `non_finite="stop"` the first one does.

    Raises what `world.is_peer_loss` recognises when the other ranks do not come.
    """

    def __init__(
        self,
        seed: int = 0,
        directory: str | Path | None = None,
        save_every_steps: int = 100,
        non_finite: Literal["skip", "stop"] = "skip",
    ) -> None:
        self._begun = time.monotonic()
        self._seed = seed
        self._non_finite = non_finite
        self._running: _Run | None = None
        self._state: TrainState | None = None
        self._optimizer: Optimizer | None = None
        self._model: nn.Module | None = None
        self._done = False
        """All steps are made, and saved."""
        self._ended = False
        present = launch.present()
        self._alone = present is None
        if present is None:
            policy = CheckpointPolicy(interval_steps=save_every_steps)
            self._launch, store = solo.enter(Path(directory) if directory else None, policy)
            self._world = worlds.meet(self._launch.assignment, store)
            atexit.register(lambda: solo.leave(self._done))
        else:
            self._launch = present
            self._launch.finish = self.finish
            self._world = join(self._launch.assignment, self._launch.channel)
        seed_all(seed)

    # --- what a program may ask --------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among all of the job: 0, 1, ... It changes when the job is resized."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job at present."""
        return self._world.size

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints."""
        return self._world.leads

    @property
    def device(self) -> torch.device:
        """Where model and batches are."""
        return self._world.device

    @property
    def steps(self) -> int:
        """Steps done so far, those before a restart included."""
        return self._state.position.step if self._state else 0

    @property
    def loss(self) -> float | None:
        """Mean loss of the last step over the samples of all ranks; None before the first, or when not finite."""
        result = self._running.result if self._running else None
        return result.commit.loss if result else None

    # --- before the loop ---------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, strategy: OwnStrategy = "ddp", **options: Any) -> nn.Module:
        """Share the model out over the ranks; make the optimizer of the parameters of what is returned.

        `ddp` replicates it; `fsdp` shards it, by the elements of its ModuleLists. `options` go to
        DistributedDataParallel or fully_shard.
        """
        self._strategy = strategy
        self._model = own_model.share_out(model, strategy, self._world, options)
        return self._model

    def attach(
        self, optimizer: Optimizer, scheduler: LRScheduler | None = None, gradient_clip: float = 0.0, **states: Stateful
    ) -> None:
        """What `step` updates: the optimizer, and after it the scheduler, which counts steps.

        `gradient_clip` is the largest norm of the gradient; 0 does not clip. `states` are other objects with
        state_dict and load_state_dict, equal on all ranks, that are saved and restored too.
        """
        if self._model is None:
            raise ConfigurationError("session.attach: there is no model yet: call session.prepare(model) first")
        self._scheduler = scheduler
        self._clip = gradient_clip
        self._optimizer = optimizer
        self._extra = {**states, **({"scheduler": scheduler} if scheduler is not None else {})}

    # --- the loop ----------------------------------------------------------------------------------------------------

    def batches(
        self, dataset: Samples, steps: int, global_batch_size: int, micro_batch_size: int | None = None, **loader: Any
    ) -> Iterator[Any]:
        """This rank's batches, on its device, from where the run stands to the end of step `steps`.

        Each step trains on `global_batch_size` samples over all ranks, however many these are; a rank takes its share
        in batches of `micro_batch_size` at most (default: at once). Call `backward` and `step` for each of them. The
        dataset is shuffled anew in every epoch. `loader` goes to torch's DataLoader: collate_fn, num_workers, ...

        Ends the process (SystemExit) when the job asks for it: all is saved then.
        """
        if self._optimizer is None:
            raise ConfigurationError("session.batches: there is no optimizer yet: call session.attach(optimizer) first")
        training = TrainingConfig(
            steps=steps,
            global_batch_size=global_batch_size,
            micro_batch_size=min(micro_batch_size or global_batch_size, global_batch_size),
            gradient_clip=self._clip,
            seed=self._seed,
            non_finite=self._non_finite,
        )
        self._running = self._open(dataset, training, None)
        while self.steps < steps:
            yield from self._batches_of_this_world(dataset, training, loader)
        while not self._done:
            self._protected(self._save_result)

    def _batches_of_this_world(
        self, dataset: Samples, training: TrainingConfig, loader: dict[str, Any]
    ) -> Iterator[Any]:
        run = self._run
        sampler = self._sampler(len(dataset), training)
        batches = iter(DataLoader(cast(Dataset[Any], dataset), batch_sampler=sampler, **loader))
        while self.steps < training.steps and self._running is run:
            with run.engine.clock.phase("data_wait"):
                batch = to_device(next(batches), self.device)
            part = sampler.parts.popleft()
            seed_tensors(self.device, mix(mix(self._seed) ^ part.first))
            run.begin(part)
            reduce_gradients(run.state.model, enabled=part.last)
            yield batch
            if self._running is run:
                run.end()
                if part.last and self.steps < training.steps:
                    self._protected(self._act)

    def backward(self, loss: Tensor, weight: int | None = None) -> None:
        """The backward pass of a batch. `loss` is its mean over `weight` items: samples, unless said otherwise.

        A loss per token is a mean over the batch's tokens: say how many they are, and each token of the global batch
        counts alike, on whichever rank it is.
        """
        if loss.ndim:
            raise ValueError(f"loss has shape {tuple(loss.shape)}: give its mean, and say by `weight` of how many")
        self._protected(lambda run: run.backward(loss, weight))

    def step(self) -> bool:
        """Once all batches of a step are through: update the model on all ranks; whether that was done."""
        done = self.steps
        self._protected(lambda run: run.step())
        return self.steps > done

    def evaluate(
        self, dataset: Samples, measure: Callable[[Any], Mapping[str, Tensor]], batch_size: int = 64, **loader: Any
    ) -> dict[str, float]:
        """Means over a dataset, shared out over the ranks, that all of them get; all ranks must call it, in the loop.

        `measure` gets a batch and returns means over its samples by name. One named `loss` becomes the job's
        evaluation loss.
        """
        options = {"batch_size": batch_size, **loader}
        means: list[dict[str, float]] = []

        def act(run: _Run) -> None:
            found = self._measure_together if run.aligned else self._measure_alone
            with run.engine.clock.phase("evaluation"):
                means.append(found(run, dataset, measure, options))

        while not means:  # a peer may be lost on the way
            self._protected(act)
        if "loss" in means[0]:
            self._run.engine.evaluated(means[0]["loss"])
        return means[0]

    def log(self, **values: float) -> None:
        """Print values beside the step; rank 0 does, the others need not be kept from calling."""
        if self.leads:
            shown = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            print(f"step {self.steps}: {shown}", flush=True)

    def finish(self) -> None:
        """Save what is not saved yet and leave the others in order. All ranks must come here.

        Only a program that leaves the loop early, and was started by `python` or `torchrun`, has to call it.
        """
        if not self._ended:
            self._end(self._running.engine.save_result() if self._running is not None else "completed")

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> _Run:
        if self._running is None:
            raise ConfigurationError("session: no batch yet: call this inside `for batch in session.batches(...)`")
        return self._running

    def _open(self, dataset: Samples, training: TrainingConfig, survivor: Survivor | None) -> _Run:
        """Bring the state to where the run stands; what decides the order of samples is known only now."""
        order = DataIdentity(
            fingerprint=f"{type(dataset).__name__} of {len(dataset)}",
            samples=len(dataset),
            seed=self._seed,
            global_batch_size=training.global_batch_size,
            sequence_length=1,
        )
        assignment, channel = self._launch.assignment, self._launch.channel
        assert self._model is not None
        identity = RunIdentity(own_model.identity(self._model), self._strategy, order, own_program=True)
        keeps = channel.lasting and isinstance(self._model, Replicated)
        trail = (survivor.trail if survivor else None) or Trail()
        engine = Engine(assignment, self._world, channel, identity, trail if keeps else None)
        config = TrainConfig(training=training, parallelism=ParallelismConfig(strategy=self._strategy))
        taken = take_over(lambda: self._state_here(survivor), engine, assignment.record.rung, config, survivor)
        if taken is None and survivor is not None:
            raise GenerationOverError("no peer has the newest state: the program has to begin anew")
        state = taken.state if taken else self._state_here(None, alike=False)
        if taken:
            engine.take_over(state, taken.agreement, self._begun, training.steps)
        else:
            engine.restore(state, self._begun, training.steps)
        self._state = state
        stepper = Stepper(state, config, self._world, targets_per_sample=1)
        if keeps:
            let_commits_arrive(stepper, assignment, channel)
        again = partial(self._open, dataset, training)
        return _Run(assignment.record.number, engine, stepper, self._scheduler, again, aligned=taken is None)

    def _state_here(self, survivor: Survivor | None, *, alike: bool = True) -> TrainState:
        """The program's own objects, wrapped for this world; `alike`: the ranks' models need not be made equal."""
        model, position = self._model, survivor.state.position if survivor else Position()
        if isinstance(model, Replicated):
            model.unwrap()
            if survivor is not None:
                survivor.state.model = model.module
            gc.collect()  # the former wrapper must be gone before there is another
            model.wrap(self._world, init_sync=not alike)
            model = model.wrapped
        assert model is not None
        assert self._optimizer is not None
        return TrainState(model, self._optimizer, position, self._extra)

    def _measure_together(self, run: _Run, dataset: Samples, measure: _Measure, options: dict[str, Any]) -> _Means:
        return measure_all(run.state.model, dataset, measure, self._world, dict(options), run.engine.evaluating)

    def _measure_alone(self, run: _Run, dataset: Samples, measure: _Measure, options: dict[str, Any]) -> _Means:
        """All of the dataset here: ranks that have just joined are at another place of the program."""
        assert isinstance(self._model, Replicated), "only a replicated state outlives its world"
        world = replace(self._world, rank=0, size=1)
        with self._model.alone():
            return measure_all(self._model.module, dataset, measure, world, dict(options), run.engine.evaluating)

    def _protected(self, act: Callable[[_Run], object]) -> None:
        """Do something together with the other ranks; when one of them is lost, go on in the next generation."""
        run = self._run
        try:
            act(run)
        except Exception as error:
            survivor = run.survivor()
            if survivor is None or not lost_its_world(error, self._launch.channel):
                raise
            tell_loss(self.rank, error)
        else:
            return
        run.engine.give_up()
        stand_by(survivor, self._launch.assignment, self._launch.channel)
        self._move_on(run, survivor)

    def _act(self, run: _Run) -> None:
        """Do what was decided in the last step."""
        if ending := run.engine.act(run.decision):
            self._leave(run, ending)

    def _save_result(self, run: _Run) -> None:
        ending = run.engine.save_result()
        if ending == "completed":
            self._done = True
        else:
            self._leave(run, ending)

    def _leave(self, run: _Run, ending: Ending) -> None:
        """End this generation by agreement: to live on in the next one, or for good."""
        survivor = run.survivor() if ending == "leave" else None
        if survivor is None:
            self._end(ending)
            raise SystemExit(STOPPED_EXIT_CODE if self._alone else 0)
        run.engine.finish(ending, survivor.kept())
        forget_world()
        self._move_on(run, survivor)

    def _move_on(self, run: _Run, survivor: Survivor) -> None:
        """Enter the next generation that comes about."""
        while True:
            self._launch.assignment = assignment = self._launch.channel.next_assignment()
            self._begun = time.monotonic()
            try:
                self._world = join(assignment, self._launch.channel)
                self._running = run.again(survivor)
            except Exception as error:
                over = isinstance(error, GenerationOverError)  # for this process: no next one takes it
                if not survivor.whole or over or not lost_its_world(error, self._launch.channel):
                    raise
            else:
                return
            stand_by(survivor, assignment, self._launch.channel)

    def _sampler(self, samples: int, training: TrainingConfig) -> ShareSampler:
        shares = Shares(
            order=SampleOrder(samples, self._seed),
            global_batch_size=training.global_batch_size,
            micro_batch_size=training.micro_batch_size,
            rank=self.rank,
            size=self.world_size,
        )
        position = self._run.state.position
        return ShareSampler(shares, position.samples, training.steps - position.step)

    def _end(self, ending: Ending) -> None:
        self._ended = True
        if self._running is not None:
            self._running.engine.finish(ending)
        else:
            worlds.leave()
            self._launch.tell_end(ending)


class _Run:
    """The steps of one generation, put together from what the user's loop calls."""

    def __init__(
        self,
        number: GenerationNumber,
        engine: Engine,
        stepper: Stepper,
        scheduler: LRScheduler | None,
        again: Callable[[Survivor], _Run],
        aligned: bool,
    ) -> None:
        self.engine = engine
        self.state = stepper.state
        self.result: StepResult | None = None
        self.decision = Decision.CONTINUE
        self.again = again
        """Makes the run of the next generation."""
        self.aligned = aligned
        """Whether all ranks are at the same place of the program; those that live on are not where new ones begin."""
        self._number = number
        self._stepper = stepper
        self._scheduler = scheduler
        self._part: Part | None = None
        self._passed = False
        """Whether the backward pass of this part was made."""
        self._since = 0.0
        self._samples = 0
        self._items = 0
        self._loss_sum: float | Tensor = 0.0

    def survivor(self) -> Survivor | None:
        """This rank between two generations; None if its state is not worth keeping."""
        found = survivor_of(self._number, self.engine, self._stepper)
        if found is not None:
            found.on_completed = self._schedule
        return found

    def begin(self, part: Part) -> None:
        """The user gets the batch of `part`."""
        self._part, self._passed = part, False
        self._samples += part.samples
        self._since = time.monotonic()
        self._stepper.compute_time.begin()

    def end(self) -> None:
        """The user asks for the next one."""
        self._count_time()
        if self._part is not None and self._part.last and self._items:
            raise ConfigurationError("session.batches: the step is not done: call session.step() after each backward")

    def backward(self, loss: Tensor, weight: int | None) -> None:
        """Accumulate."""
        if self._passed:
            raise ConfigurationError("session.backward: called twice for one batch: add up its losses and call it once")
        self._passed = True
        samples = self._part.samples if self._part else 0
        items = weight if weight is not None and samples else samples
        factor = torch.full_like(loss, items / self._stepper.expected_tokens, requires_grad=False)
        self._stepper.compute_time.until_computed(loss)
        self._items += items
        mean = loss.detach().double() if loss.is_cuda else loss.item()  # the host need not wait for a GPU
        self._loss_sum += mean * items
        if self._stepper.proposes_early:
            self._propose()
        loss.backward(factor)  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Commit, if this was the last part."""
        if self._part is None or not self._part.last:
            return
        if self._stepper.proposal is None:
            self._propose()
        rate = float(self.state.optimizer.param_groups[0]["lr"])
        self.result = result = self._stepper.commit()
        self._schedule(result)
        self.aligned = True
        self.decision, self._samples, self._items, self._loss_sum = result.commit.decision, 0, 0, 0.0
        self._count_time()
        self.engine.committed(result, rate)

    def _propose(self) -> None:
        if self._part is not None and self._part.last:
            share = Share(self._items, self._loss_sum, self._part.digest, self._load())
            self._stepper.propose(share, self.engine.decide())

    def _schedule(self, result: StepResult) -> None:
        if result.updated and self._scheduler is not None:
            self._scheduler.step()

    def _load(self) -> float:
        training, ranks = self._stepper.config.training, self._stepper.world.size
        return max(1.0, self._samples * ranks / training.global_batch_size)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.engine.clock.add("step", now - self._since)
        self._since = now
