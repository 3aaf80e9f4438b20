"""One optimizer step: accumulate gradients, reduce them, commit, update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from regroup_trainer.data.batch import virtual_shards
from regroup_trainer.parallel.gradient_sum import SummedDDP
from regroup_trainer.parallel.mesh import Mesh, arrange
from regroup_trainer.parallel.ordered_sum import OrderedSum
from regroup_trainer.parallel.parallelize import reduce_gradients
from regroup_trainer.parallel.pipeline import Pipeline
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.protocol.strategies import STRATEGIES
from regroup_trainer.step import commit
from regroup_trainer.step.collective_time import CollectiveTime
from regroup_trainer.step.commit import Contribution
from regroup_trainer.step.compute_time import ComputeTime
from regroup_trainer.step.forward import forward
from regroup_trainer.step.gradients import (
    local_gradients,
    parameters_by_holders,
    sum_of_squares,
)
from regroup_trainer.step.proposal import Proposal, Share
from regroup_trainer.step.rank_batch import DeviceBatch, RankBatch
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.updater import StateUpdater, StepResult


class Stepper:
    """Makes the steps of one generation on this rank."""

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        group: GenerationGroup,
        targets_per_sample: int,
    ) -> None:
        """`targets_per_sample`: predictions that a sample asks for; each counts as a token."""
        self.state = state
        self.config = config
        self.group = group
        self.updater = StateUpdater(state, config, targets_per_sample)
        self.proposal: Proposal | None = None
        """The commit of the present step, while it is on its way."""
        self.compute_time = ComputeTime(
            state.model, group.device, measured=not config.parallelism.is_model_parallel
        )
        self.collective_time = CollectiveTime()
        self._targets_per_sample = targets_per_sample
        self._mesh: Mesh = arrange(config.parallelism, group)
        self._exact = config.training.deterministic == "exact"
        self._graph_known = False
        self._load = 1.0

    @cached_property
    def _by_holders(self) -> dict[int, list[nn.Parameter]]:
        return parameters_by_holders(self.state.model, self._mesh)

    @cached_property
    def proposes_early(self) -> bool:
        """Whether `propose` is called before the last backward pass, so that the all-reduce of the
        commit overlaps with those of the gradients.

        Each rank must get all gradients, so that it can compute their norm alone. A GPU's guard
        needs the norm in the sum, so it is CPUs only.
        """
        layout = self.config.parallelism
        replicated = (
            STRATEGIES[layout.strategy].commits_early
            and not layout.is_model_parallel
            and not self._exact
        )
        return replicated and self.group.device.type == "cpu" and self.group.size > 1

    def run(self, batch: RankBatch, decision: Decision, ready: bool = True) -> StepResult:
        """Train on this rank's share of the global batch.

        Raises CommitError, NonFiniteError, and c10d's errors when a peer is lost.
        """
        tokens = batch.samples * self._targets_per_sample
        accumulate = self._accumulate_in_order if self._exact else self._accumulate
        accumulate(
            batch.micro_batches,
            lambda loss: self.propose(Share(tokens, loss, batch.digest), decision, ready),
        )
        return self.commit()

    def propose(self, share: Share, decision: Decision, ready: bool = True) -> None:
        """Begin the all-reduce of what the ranks bring to the present step.

        `ready` says whether this rank has memory ready for a snapshot.
        """
        if not self.proposes_early:
            self._on_reduced()
        counts = self._mesh.counts  # one rank of each data-parallel row counts samples and tokens
        contribution = Contribution(
            tokens=share.tokens if counts else 0,
            loss_sum=share.loss_sum if self._mesh.counts_loss else 0.0,
            squared_norm=0.0 if self.proposes_early else self._squared_norm(),
            digest=share.digest if counts else 0,
            decision=decision,
            ready=ready,
        )
        self._load = share.load
        self.proposal = Proposal(contribution, self.group)

    def commit(self) -> StepResult:
        """Make the reduced gradients and the proposal a step of all ranks. Raises as `run` does."""
        proposal = self.proposal
        assert proposal is not None, "a step is proposed before it is committed"
        if self.proposes_early:
            self._on_reduced()
        squared_norm = float(sum_of_squares(self._reduced())) if self.proposes_early else None
        # If the generation ends from here on, a rank that knows the commit can share it.
        self.updater.prepare()
        began, size = self.compute_time.now(), self.group.size
        receive = proposal.receive()
        self.collective_time.add("commit", began, self.compute_time.now())
        if self.updater.guarded:
            result = self.updater.apply_behind_guard(
                proposal.sum, size, lambda: commit.read(receive(), size)
            )
            self.proposal = None
        else:
            committed, self.proposal = commit.read(receive(), size, squared_norm), None
            result = self.updater.apply(committed)
        self.collective_time.end_step()
        return replace(result, compute_seconds=self.compute_time.take() / self._load)

    def _on_reduced(self) -> None:
        """This rank has the sums of all gradients, or its GPU will have them here."""
        computed = self.compute_time.computed
        if computed is not None and self.group.size > 1:
            self.collective_time.add("gradients", computed, self.compute_time.now())

    def drop_proposal(self) -> None:
        """Forget the proposal, which holds on to the process group."""
        self.proposal = None

    def _accumulate(
        self, batches: list[DeviceBatch], propose: Callable[[float | Tensor], None]
    ) -> None:
        if isinstance(self.state.model, Pipeline):
            propose(self.state.model.train_on(batches, self.updater.expected_tokens))
            return
        self._record_graph(batches[0])
        total = torch.zeros((), dtype=torch.float64, device=self.group.device)
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            reduce_gradients(self.state.model, enabled=last)
            loss = self._forward(batch)
            total += loss.detach()
            if self.proposes_early and last:
                propose(total)
            self._backward(loss)
        if not self.proposes_early:
            propose(total)

    def _record_graph(self, batch: DeviceBatch) -> None:
        """Let DDP record the static graph, which it does only in a backward pass that reduces."""
        if self.config.parallelism.static_graph and not self._graph_known:
            self._backward(self._forward(batch))
            self.state.optimizer.zero_grad(set_to_none=True)
        self._graph_known = True

    def _forward(self, batch: DeviceBatch) -> Tensor:
        self.compute_time.begin()
        return forward(self.state.model, batch, self.config)

    def _backward(self, loss: Tensor) -> None:
        self.compute_time.until_computed(loss)
        # The divisor is a constant, not this rank's number of tokens: sums of such gradients do not
        # depend on the world size and never overflow.
        (loss / self.updater.expected_tokens).backward()  # type: ignore[no-untyped-call]

    def _accumulate_in_order(
        self, batches: list[DeviceBatch], propose: Callable[[float], None]
    ) -> None:
        """As `_accumulate`, in an order that does not depend on the world size. Every rank gets the
        sum of all losses, so rank 0 alone contributes it.
        """
        training, mesh = self.config.training, self._mesh
        shards = virtual_shards(training.global_batch_size, training.micro_batch_size)
        ordered = OrderedSum(self.state.model, shards, mesh.data_rank, mesh.data_size)
        for batch in batches:
            loss = self._forward(batch)
            self._backward(loss)
            ordered.take(float(loss.detach()))
        total = ordered.finish()
        propose(total if self.group.is_rank0 else 0.0)

    def _reduced(self) -> list[Tensor]:
        """The reduced gradients in as few tensors as possible: on a CPU each tensor has a cost."""
        model = self.state.model
        buckets = model.reduced() if isinstance(model, SummedDDP) else None
        return buckets or local_gradients(self.updater.parameters)

    def _squared_norm(self) -> float | Tensor:
        """This rank's contribution to the squared norm of the gradient."""
        if not self._exact:
            parts = ((holders, local_gradients(held)) for holders, held in self._by_holders.items())
            return sum(
                sum_of_squares(gradients) / holders for holders, gradients in parts if gradients
            )
        # All ranks hold the same sums. Rank 0 alone contributes: adding up parts would round.
        if not self.group.is_rank0:
            return 0.0
        return sum_of_squares(local_gradients(self.updater.parameters))
