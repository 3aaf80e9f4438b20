"""One optimizer step: accumulate, reduce, commit, scale, clip, update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from regroup_trainer import commit
from regroup_trainer.batch import virtual_shards
from regroup_trainer.commit import Commit, Contribution
from regroup_trainer.compilation import compiled_loss_sum
from regroup_trainer.compute_time import ComputeTime
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import Decision
from regroup_trainer.errors import CommitError, GenerationOverError
from regroup_trainer.finiteness import Finiteness
from regroup_trainer.gradient_sum import SummedDDP
from regroup_trainer.loss import loss_sum
from regroup_trainer.mesh import Mesh, arrange
from regroup_trainer.ordered_sum import OrderedSum
from regroup_trainer.parallelize import forward_precision, reduce_gradients
from regroup_trainer.pipeline import Pipeline
from regroup_trainer.state import Position, TrainState
from regroup_trainer.world import World


@dataclass(frozen=True)
class DeviceBatch:
    """A micro-batch on its device."""

    inputs: Tensor
    """[B, ...]"""
    targets: Tensor
    """[B, ...], of the shape of the predictions that are asked for."""
    weights: Tensor
    """[B], 0 for repeats."""


@dataclass(frozen=True)
class RankBatch:
    """What a rank trains on in a step."""

    micro_batches: list[DeviceBatch]
    samples: int
    """In its share of the global batch, repeats left out."""
    digest: int
    """`order.digest` of its share."""


@dataclass(frozen=True)
class Share:
    """What a rank brings to the commit of a step, besides the gradients in its model."""

    tokens: int
    """That it trained on, repeats left out."""
    loss_sum: float | Tensor
    """Over these tokens, in nats; a tensor where the host need not know it."""
    digest: int
    """`order.digest` of its samples."""
    load: float = 1.0
    """Its work as a multiple of an equal share, at least 1: who has more to do is no slower for that."""


@dataclass(frozen=True)
class StepResult:
    """A committed step."""

    position: Position
    """After it."""
    commit: Commit
    skipped: int = 0
    """Such steps of this generation, so far."""
    compute_seconds: float = 0.0
    """This rank's own time, as `compute_time` measures it; 0 where it does not."""

    @property
    def updated(self) -> bool:
        """False when loss or gradients were not finite and the update was skipped."""
        return self.commit.finite


@dataclass
class Stepper:
    """Runs steps of one world."""

    state: TrainState
    config: TrainConfig
    world: World
    targets_per_sample: int
    """Predictions that each sample asks for; each counts as a token."""
    prepared: bool = field(default=False, init=False)
    """Whether the gradients of the next step are reduced and kept, and nothing else is missing than its commit."""
    last: Commit | None = field(default=None, init=False)
    """Of the newest step made here."""
    whole: bool = field(default=True, init=False)
    """False while, or when, an update has been applied only in part."""
    proposal: Proposal | None = field(default=None, init=False)
    """Of the step under way, until its commit is known."""
    _graph_known: bool = field(default=False, init=False)
    compute_time: ComputeTime = field(init=False)
    _finiteness: Finiteness = field(init=False)
    _load: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        self._finiteness = Finiteness(self.config.training.non_finite)
        measured = not self.config.parallelism.model_is_cut
        self.compute_time = ComputeTime(self.state.model, self.world.device, measured)

    @property
    def expected_tokens(self) -> int:
        """Tokens of a global batch (G x T)."""
        return self.config.training.global_batch_size * self.targets_per_sample

    @property
    def _exact(self) -> bool:
        return self.config.training.deterministic == "exact"

    @cached_property
    def _mesh(self) -> Mesh:
        return arrange(self.config.parallelism, self.world)

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.state.model.parameters())

    @cached_property
    def _held(self) -> dict[int, list[nn.Parameter]]:
        """The parameters by how many ranks hold the same part of their gradients. Made after a backward pass."""
        return held_by(self.state.model, self._mesh)

    def run(self, batch: RankBatch, decision: Decision) -> StepResult:
        """Train on this rank's share. Raises CommitError, NonFiniteError, and c10d's errors when a peer is lost."""
        tokens = batch.samples * self.targets_per_sample
        accumulate = self._accumulate_in_order if self._exact else self._accumulate
        accumulate(batch.micro_batches, lambda loss: self.propose(Share(tokens, loss, batch.digest), decision))
        return self.commit()

    @cached_property
    def proposes_early(self) -> bool:
        """Whether `propose` goes before the last backward pass, so that the sum travels beside the gradients.

        So it is where all ranks have the same gradients in the end, and need nobody's norm. Not on a GPU, whose guard
        wants the norm in the sum.
        """
        layout = self.config.parallelism
        replicated = layout.strategy in ("ddp", "zero") and not layout.model_is_cut and not self._exact
        return replicated and self.world.device.type == "cpu" and self.world.size > 1

    def propose(self, share: Share, decision: Decision) -> None:
        """Tell the others what this rank brings to the step that is under way."""
        counts = self._mesh.counts  # samples and tokens once for all ranks that share a batch
        contribution = Contribution(
            tokens=share.tokens if counts else 0,
            loss_sum=share.loss_sum if self._mesh.counts_loss else 0.0,
            squared_norm=0.0 if self.proposes_early else self._squared_norm(),
            digest=share.digest if counts else 0,
            decision=decision,
        )
        self._load = share.load
        self.proposal = Proposal(contribution, self.world)

    def commit(self) -> StepResult:
        """Make the accumulated, reduced gradients and what was proposed a step of all ranks. Raises as `run` does."""
        proposal = self.proposal
        assert proposal is not None, "a step is proposed before it is committed"
        squared_norm = float(sum_of_squares(self._reduced())) if self.proposes_early else None
        # From here on the step can be completed without the others, should any of them come to know its commit.
        self.prepared = True
        if self.guarded:
            return self._commit_behind_guard(proposal)
        committed, self.proposal = proposal.agreed(squared_norm), None
        return self.complete(committed)

    @cached_property
    def guarded(self) -> bool:
        """Whether the device itself holds back an update without a whole commit, so that none waits for the host.

        So it is on GPUs, with the fused optimizers of PyTorch: what they take for mixed precision serves here.
        """
        fused = getattr(self.state.optimizer, "_step_supports_amp_scaling", False)
        return fused and all(parameter.is_cuda for parameter in self._parameters)

    def _commit_behind_guard(self, proposal: Proposal) -> StepResult:
        """Queue the update, and then read the sum that lets it through or not."""
        training, optimizer = self.config.training, self.state.optimizer
        told = proposal.told()
        held_back, divisor = commit.guard(proposal.sum, self.world.size, self.expected_tokens, training.gradient_clip)
        self.whole = False
        optimizer.found_inf, optimizer.grad_scale = held_back, divisor  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        try:
            committed = commit.read(told(), self.world.size)
        except CommitError as error:
            self.whole = True  # by the guard: nothing was updated, and the gradients are as they were
            # On the host, a collective that was aborted on a GPU looks like one that has ended.
            raise GenerationOverError(f"the commit did not arrive whole: {error}") from error
        self.prepared, self.proposal = False, None
        return self._advance(committed)

    def complete(self, committed: Commit) -> StepResult:
        """Apply the prepared step with what all ranks know of it, learned by the sum or from a peer that has it."""
        self.prepared, self.whole = False, False
        self._update(committed)
        return self._advance(committed)

    def _advance(self, committed: Commit) -> StepResult:
        self.state.optimizer.zero_grad(set_to_none=True)
        before = self.state.position
        self._finiteness.note(before.step + 1, committed.finite)
        after = Position(
            step=before.step + 1,
            samples=before.samples + self.config.training.global_batch_size,
            tokens=before.tokens + committed.tokens,
        )
        self.state.position, self.last, self.whole = after, committed, True
        return StepResult(after, committed, self._finiteness.skipped, self.compute_time.take() / self._load)

    def _accumulate(self, batches: list[DeviceBatch], propose: Callable[[float | Tensor], None]) -> None:
        if isinstance(self.state.model, Pipeline):
            propose(self.state.model.train_on(batches, self.expected_tokens))
            return
        self._record_graph(batches[0])
        model, total = self.state.model, torch.zeros((), dtype=torch.float64, device=self.world.device)
        for number, batch in enumerate(batches, start=1):
            reduce_gradients(model, enabled=number == len(batches))
            loss = self._forward(batch)
            total += loss.detach()
            if self.proposes_early and number == len(batches):
                propose(total)
            self._backward(loss)
        if not self.proposes_early:
            propose(total)

    def _record_graph(self, batch: DeviceBatch) -> None:
        """DDP records a static graph in the first backward pass that it reduces, and only then can do without."""
        if self.config.parallelism.static_graph and not self._graph_known:
            self._backward(self._forward(batch))
            self.state.optimizer.zero_grad(set_to_none=True)
        self._graph_known = True

    def _forward(self, batch: DeviceBatch) -> Tensor:
        """The loss sum of a micro-batch."""
        self.compute_time.begin()
        return forward(self.state.model, batch, self.config)

    def _backward(self, loss: Tensor) -> None:
        self.compute_time.until_computed(loss)
        # A constant, not the tokens of this rank: sums of such gradients never overflow, whatever the world.
        (loss / self.expected_tokens).backward()  # type: ignore[no-untyped-call]

    def _accumulate_in_order(self, batches: list[DeviceBatch], propose: Callable[[float], None]) -> None:
        """As `_accumulate`, but the sums are those of all ranks; the loss is told by rank 0 alone."""
        training, mesh = self.config.training, self._mesh
        shards = virtual_shards(training.global_batch_size, training.micro_batch_size)
        ordered = OrderedSum(self.state.model, shards, mesh.data_rank, mesh.data_size)
        for batch in batches:
            loss = self._forward(batch)
            self._backward(loss)
            ordered.take(float(loss.detach()))
        total = ordered.finish()
        propose(total if self.world.leads else 0.0)

    def _reduced(self) -> list[Tensor]:
        """The reduced gradients, in as few tensors as there are: on a CPU each costs more than its elements."""
        model = self.state.model
        buckets = model.reduced() if isinstance(model, SummedDDP) else None
        return buckets or local_gradients(self._parameters)

    def _squared_norm(self) -> float | Tensor:
        if not self._exact:
            parts = ((holders, local_gradients(held)) for holders, held in self._held.items())
            return sum(sum_of_squares(gradients) / holders for holders, gradients in parts if gradients)
        # All ranks hold the same sums; one tells, since adding up equal parts would round.
        return sum_of_squares(local_gradients(self._parameters)) if self.world.leads else 0.0

    def _update(self, committed: Commit) -> None:
        if committed.finite:
            factor = commit.gradient_factor(committed, self.expected_tokens, self.config.training.gradient_clip)
            if factor != 1.0:
                torch._foreach_mul_(local_gradients(self._parameters), factor)
            self.state.optimizer.step()


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def forward(model: nn.Module, batch: DeviceBatch, config: TrainConfig) -> Tensor:
    """The loss sum of a micro-batch."""
    with forward_precision(model, config, batch.inputs.device):
        if config.model.loss_chunks > 1:
            loss: Tensor = model(batch.inputs, batch.targets, batch.weights)
            return loss
        logits = model(batch.inputs)
    whole = not config.parallelism.model_is_cut  # of logits that are cut only the plain loss has been tried
    compute = compiled_loss_sum() if config.training.compile and whole else loss_sum
    return compute(logits, batch.targets, batch.weights)


@torch.no_grad()  # a DTensor would note each look at it for a backward pass
def local_gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """What this rank holds of their gradients."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def held_by(model: nn.Module, mesh: Mesh) -> dict[int, list[nn.Parameter]]:
    """The parameters of a model by how many ranks hold the same part of their gradients."""
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        copies = model.copies(name) if isinstance(model, Pipeline) else 1
        tensor = parameter if parameter.grad is None else parameter.grad
        found[copies * _holders(tensor, mesh)].append(parameter)
    return found


def sum_of_squares(tensors: list[Tensor]) -> float | Tensor:
    """Over all elements of tensors that are on one device; their sums are added in double precision.

    The host does not wait for a GPU.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors)).double().square().sum()
    flat = (tensor.reshape(-1) for tensor in tensors)
    return sum(float(one.dot(one)) for one in flat)  # the quickest kernel, and one of them


def _holders(tensor: Tensor, mesh: Mesh) -> int:
    """How many ranks hold the same part of a tensor: those of a pipeline stage, by the parts that it is cut in."""
    ranks = math.prod(mesh.sizes) // mesh.sizes.pipeline
    if not isinstance(tensor, DTensor):
        return ranks
    cuts = [
        size
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        if not placement.is_replicate()
    ]
    return ranks // math.prod(cuts)


class Proposal:
    """The contributions of all ranks on their way to each other."""

    def __init__(self, contribution: Contribution, world: World) -> None:
        self._size = world.size
        self.sum = contribution.vector(world.device)
        """[LENGTH]; of all ranks once it has arrived."""
        self._work = dist.all_reduce(self.sum, async_op=True) if world.size > 1 else None

    def agreed(self, squared_norm: float | None) -> Commit:
        """Their sum, as soon as all ranks have proposed; `squared_norm` where the sum does not tell it."""
        return commit.read(self.told()(), self._size, squared_norm)

    def told(self) -> Callable[[], list[float]]:
        """Let what is queued next on the device find the sum; returns what waits for it on the host, and no longer."""
        if self._work is not None:
            self._work.wait()
        if self.sum.device.type == "cpu":
            return self.sum.tolist
        copy = torch.empty_like(self.sum, device="cpu", pin_memory=True)
        copy.copy_(self.sum, non_blocking=True)
        arrived = torch.cuda.current_stream().record_event()

        def read() -> list[float]:
            arrived.synchronize()
            numbers: list[float] = copy.tolist()
            return numbers

        return read
