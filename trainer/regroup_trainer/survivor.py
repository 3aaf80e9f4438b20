"""A rank whose world has ended, and which goes on in the next one with the state in its memory.

Nothing of the old process group may be touched any more, and nothing is said by the state itself of how far the others
came: what is offered here is agreed upon by all ranks of the next world (`offers`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer import world as worlds
from regroup_trainer.agreement import from_all
from regroup_trainer.channel import Channel
from regroup_trainer.commit import Commit
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import Assignment, GenerationNumber, Kept, Rung, Standing
from regroup_trainer.engine import Engine, Trail
from regroup_trainer.mesh import arrange, disconnect
from regroup_trainer.offers import Agreement, Offer, agree
from regroup_trainer.parallelize import parallelize_again
from regroup_trainer.state import TrainState
from regroup_trainer.step import Stepper, StepResult
from regroup_trainer.transfer import receive, send, transplant
from regroup_trainer.world import World

_COMMIT_SECONDS = 0.1
"""How long a commit may be under way when its world is over: with more ranks than cores a sum takes some 10 ms."""
_MOMENT_SECONDS = 0.002


@dataclass
class Survivor:
    """A rank between two generations."""

    generation: GenerationNumber
    """The one whose state this is."""
    engine: Engine
    stepper: Stepper
    shard: int
    shards: int
    on_completed: Callable[[StepResult], None] = lambda _: None
    """Called when a step is completed between two generations."""
    void: frozenset[GenerationNumber] = frozenset()
    """Generations that it entered since, and did not train in."""

    @property
    def state(self) -> TrainState:
        """As it was left."""
        return self.stepper.state

    @property
    def whole(self) -> bool:
        """Whether its state is that of a step; not so where it was being overwritten when the next world broke too."""
        return self.stepper.whole

    @property
    def trail(self) -> Trail | None:
        """What it remembers besides."""
        return self.engine.trail

    def kept(self) -> Kept:
        """In the words of the contract."""
        stepper = self.stepper
        step = stepper.state.position.step
        return Kept(step=step, prepared=stepper.prepared, shard=self.shard, shards=self.shards)

    def offer(self, shard: int, config: TrainConfig) -> Offer:
        """To ranks of the next world, in which this one shall hold `shard` of a state trained as `config` says."""
        if shard != self.shard or not self.fits(config):
            return Offer(shard)
        stepper = self.stepper
        step = stepper.state.position.step
        return Offer(shard, self.generation, step, stepper.prepared, stepper.last, self.void)

    def fits(self, config: TrainConfig) -> bool:
        """Whether a state trained as this one may go on by `config` without a checkpoint."""
        return _of_state(self.stepper.config) == _of_state(config)

    def complete(self, commit: Commit) -> None:
        """Apply the step that was prepared, now that its commit is known."""
        result = self.stepper.complete(commit)
        self.engine.note(result)
        self.on_completed(result)
        print(f"completed step {result.position.step}, whose commit a peer had seen", file=sys.stderr, flush=True)


def survivor_of(number: GenerationNumber, engine: Engine, stepper: Stepper) -> Survivor | None:
    """This rank, if its state is whole and worth keeping."""
    if engine.trail is None or not stepper.whole:
        return None
    mesh = arrange(stepper.config.parallelism, stepper.world)
    return Survivor(number, engine, stepper, mesh.part, mesh.parts)


def join(assignment: Assignment, channel: Channel) -> World:
    """Enter the process group of a generation; its end will be noticed even in a collective that never returns.

    Raises what `world.is_peer_loss` recognises when the others do not come.
    """
    channel.when_over(assignment.record.number, lambda: worlds.cut_off(_addresses(assignment)))
    return worlds.join(assignment)


def let_commits_arrive(stepper: Stepper, assignment: Assignment, channel: Channel) -> None:
    """From now on the world is not left while a commit is under way, unless that takes longer than a moment.

    A rank that is dead may have applied that step, and sent all that the others need for it: their connections to each
    other bring it.
    """

    def leave() -> None:
        until = time.monotonic() + _COMMIT_SECONDS
        while stepper.proposal is not None and time.monotonic() < until:
            time.sleep(_MOMENT_SECONDS)
        worlds.cut_off(_addresses(assignment))

    channel.when_over(assignment.record.number, leave)


def _addresses(assignment: Assignment) -> set[str]:
    """Of all that this rank is connected to in its world."""
    record = assignment.record
    return {place.address for place in record.members if place.address} | {record.store.rsplit(":", 1)[0]}


def stand_by(survivor: Survivor, assignment: Assignment, channel: Channel) -> None:
    """Leave a world that broke, and tell so; the channel then gives the next assignment.

    Call it where no exception is being handled, since its frames hold what must go.
    """
    survivor.stepper.proposal = None  # it holds on to the process group
    worlds.hold(_addresses(assignment))
    forget_world()
    channel.send(Standing(generation=assignment.record.number, rank=assignment.rank, kept=survivor.kept()))


def lost_its_world(error: Exception, channel: Channel) -> bool:
    """Whether an error says that others went away, or came after this world was over: what is cut off says anything."""
    return worlds.is_peer_loss(error) or channel.is_over()


def forget_world() -> None:
    """Close the process group, and what torch remembers of its meshes."""
    worlds.abandon()
    gc.collect()  # a second DistributedDataParallel over a module whose first one still lives raises an error
    disconnect()
    forget_meshes()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forget_meshes() -> None:
    """Drop what torch has cached by the shape of a mesh: it would return tensors on an old one."""
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Taken:
    """A state that lives on in a new world."""

    state: TrainState
    agreement: Agreement


def take_over(
    state_here: Callable[[], TrainState],
    engine: Engine,
    rung: Rung,
    config: TrainConfig,
    survivor: Survivor | None,
) -> Taken | None:
    """Go on from what lives in the ranks of this world; None when that cannot be, and a checkpoint has to serve.

    All ranks call it. `rung` is the one that the generation was begun with; `state_here` gives the state in its wrapper
    for this world: the survivor's, or one to be filled. Raises StorageError; FencedError when a newer
    generation has begun; c10d's errors when a peer is lost.
    """
    if rung != "L0":
        return None
    world = engine.world
    shard = arrange(config.parallelism, world).part
    if survivor is not None:
        survivor.void |= {engine.number}
    agreement = agree(from_all(survivor.offer(shard, config) if survivor else Offer(shard)))
    if agreement is None or not engine.may_take_over(agreement):
        return None
    if survivor is not None and agreement.commit is not None and world.rank in agreement.completing:
        survivor.complete(agreement.commit)
    state = state_here()
    if survivor is not None:
        survivor.stepper.prepared = False  # the gradients went with the wrapper
    if survivor is not None and world.rank in {destination for _, destination in agreement.transfers}:
        survivor.stepper.whole = False
    return Taken(state, agreement) if _exchange(state, agreement, engine) else None


def carry_over(
    survivor: Survivor | None, config: TrainConfig, world: World, build: Callable[[World], TrainState]
) -> TrainState:
    """The state for a new world: the survivor's own, or one that `build` makes and a peer is to fill."""
    if survivor is None or not survivor.fits(config):
        return build(world)
    forget_meshes()  # completing a step has filled the cache anew
    old = survivor.state
    if config.parallelism.strategy == "hsdp" or config.parallelism.model_is_cut:
        return transplant(old, build(world))
    if isinstance(old.model, DistributedDataParallel):
        old.model = old.model.module
        gc.collect()  # the former wrapper must be gone before there is another
    return TrainState(parallelize_again(old.model, config, world), old.optimizer, old.position, old.extra)


def _exchange(state: TrainState, agreement: Agreement, engine: Engine) -> bool:
    """Send the state to those who lack it, with the steps that led there; whether it arrived everywhere.

    A rank 0 that is new has to note the steps which the former one took with it.
    """
    rank, trail = engine.world.rank, engine.trail
    assert trail is not None, "a state that can live on has a trail"
    arrived = True
    for source, destination in agreement.transfers:
        if rank == source:
            send(state, tuple(trail.steps), destination)
        elif rank == destination:
            arrived, steps = receive(state, source)
            trail.steps.clear()
            trail.steps.extend(steps)
    return not agreement.transfers or all(from_all(arrived))


def _of_state(config: TrainConfig) -> TrainConfig:
    training = config.training.model_copy(update={"steps": 0, "non_finite": "skip"})
    return config.model_copy(update={"training": training, "evaluation": None})
