"""Which state a rank between two worlds may offer to the next one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from regroup_trainer import survivor
from regroup_trainer.checkpoint import lineage, load
from regroup_trainer.checkpoint.layout import Layout, RunIdentity
from regroup_trainer.checkpoint.load import Restorer
from regroup_trainer.commit import Commit
from regroup_trainer.config import ResumePolicy
from regroup_trainer.contract import Decision, GenerationNumber
from regroup_trainer.engine import Engine, Trail
from regroup_trainer.errors import GenerationOverError
from regroup_trainer.offers import Agreement, Offer
from regroup_trainer.state import Position, TrainState
from regroup_trainer.step import Share, Stepper
from regroup_trainer.survivor import Survivor, survivor_of, take_over
from regroup_trainer.world import World, is_peer_loss
from tests.support.ranks import generation, train_config
from tests.trainer.checkpoint.checkpoints import DATA
from tests.trainer.whole_state import equal

OLD, NEW = GenerationNumber(1, 1), GenerationNumber(1, 2)
COMMIT = Commit(tokens=10, loss=1.0, gradient_norm=1.0, digest=7, decision=Decision.CONTINUE)
CONFIG = train_config()


class Breaking(torch.optim.SGD):
    """An optimizer that is interrupted half-way."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        raise RuntimeError("Connection closed by peer")


class Job:
    """What of an engine decides about a survivor."""

    trail = Trail()
    number = NEW
    world = World(0, 1, 0, torch.device("cpu"))

    def __init__(self, restorer: Restorer | None = None) -> None:
        self._restorer = restorer

    def may_take_over(self, agreement: Agreement) -> bool:
        """As the engine's; where no volume is given it agrees."""
        return self._restorer is None or Engine.may_take_over(cast(Engine, self), agreement)


def make_stepper(optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> Stepper:
    model = nn.Linear(1, 1)
    state = TrainState(model, optimizer(model.parameters(), lr=0.1), Position(5, 50, 500))
    return Stepper(state, CONFIG, Job.world, targets_per_sample=1)


def make_survivor(job: Job) -> Survivor:
    found = survivor_of(OLD, cast(Engine, job), make_stepper())
    assert found is not None
    return found


def test_a_state_in_which_an_update_is_half_done_is_not_offered() -> None:
    stepper = make_stepper(Breaking)
    stepper.state.model(torch.ones(1)).sum().backward()
    stepper.propose(Share(1, 1.0, 1), Decision.CONTINUE)
    with pytest.raises(RuntimeError, match="closed by peer"):
        stepper.commit()
    assert survivor_of(OLD, cast(Engine, Job()), stepper) is None


def test_a_step_that_was_proposed_before_its_gradients_are_reduced_is_not_prepared() -> None:
    """Nobody may complete it with a peer's commit: the gradients of this rank alone are no step."""
    stepper = make_stepper()
    stepper.propose(Share(1, 1.0, 1), Decision.CONTINUE)
    found = survivor_of(OLD, cast(Engine, Job()), stepper)
    assert found is not None
    assert not found.kept().prepared


def test_a_prepared_step_is_forgotten_with_the_wrapper_that_had_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    own = make_survivor(Job())
    own.stepper.prepared = True
    monkeypatch.setattr(survivor, "from_all", lambda mine: [mine])
    assert take_over(lambda: own.state, cast(Engine, Job()), "L0", CONFIG, own) is not None
    assert not own.kept().prepared


@pytest.mark.parametrize("committed", [False, True], ids=["began only", "may have committed"])
def test_a_state_in_memory_is_the_newest_only_if_no_generation_since_may_have_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    layout, newest = Layout(tmp_path), GenerationNumber(1, 3)
    layout.lineage.mkdir()
    monkeypatch.setattr(load, "lead", lambda action: action())
    monkeypatch.setattr(survivor, "from_all", lambda mine: [mine])
    for number, parent in ((OLD, None), (NEW, OLD)):
        began = lineage.LineageRecord(
            generation=number, parent=parent, resumed_from_step=0, resume=ResumePolicy(), data=DATA
        )
        lineage.begin(layout, began)
    record = generation(tmp_path, 1, CONFIG, number=newest)
    job = Job(Restorer(layout, record, Job.world, RunIdentity(model={}, strategy="ddp", data=DATA)))
    job.number = newest
    own = make_survivor(job)
    if not committed:
        own.void = frozenset({NEW})  # it was there, and knows
    taken = take_over(lambda: own.state, cast(Engine, job), "L0", CONFIG, own)
    assert (taken is None) == committed


def test_behind_the_guard_a_torn_commit_leaves_a_whole_state_and_a_prepared_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where the update is queued before the host knows the commit."""

    def stepper_at_commit() -> Stepper:
        torch.manual_seed(0)
        stepper = make_stepper(lambda parameters, lr: torch.optim.AdamW(parameters, lr, fused=True))
        monkeypatch.setattr(Stepper, "guarded", True)
        for _ in range(2):
            stepper.state.model(torch.ones(1)).sum().backward()
            stepper.propose(Share(10, 1.0, 1), Decision.CONTINUE)
            if stepper.state.position.step == 5:
                stepper.commit()
        return stepper

    undisturbed, torn = stepper_at_commit(), stepper_at_commit()
    before = deepcopy((torn.state.model.state_dict(), torn.state.optimizer.state_dict()))
    assert torn.proposal is not None
    torn.proposal.sum[-1] = 0.0
    with pytest.raises(GenerationOverError) as raised:
        torn.commit()
    assert is_peer_loss(raised.value), "what a GPU's aborted collective looks like"
    assert (torn.whole, torn.prepared, torn.state.position.step) == (True, True, 6)
    assert equal(before, (torn.state.model.state_dict(), torn.state.optimizer.state_dict()))
    committed = undisturbed.commit().commit
    torn.complete(committed)
    assert torn.state.position == undisturbed.state.position
    for mine, other in zip(torn.state.model.parameters(), undisturbed.state.model.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-6)


def test_a_state_that_is_being_overwritten_when_the_next_world_breaks_too_is_not_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    own = make_survivor(job)

    def break_off(*_: object) -> bool:
        raise ConnectionError("Connection closed by peer")

    monkeypatch.setattr(survivor, "from_all", lambda mine: [mine, Offer(0, OLD, 7, False, COMMIT)])
    monkeypatch.setattr(survivor, "receive", break_off)
    with pytest.raises(ConnectionError):
        take_over(lambda: own.state, cast(Engine, job), "L0", CONFIG, own)
    assert not own.whole


def test_a_world_that_is_entered_and_not_trained_in_is_told_to_have_committed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    own = make_survivor(job)
    monkeypatch.setattr(survivor, "from_all", lambda mine: [mine])
    taken = take_over(lambda: own.state, cast(Engine, job), "L0", CONFIG, own)
    assert taken is not None
    assert (taken.agreement.generation, taken.agreement.step, taken.agreement.void) == (OLD, 5, frozenset({NEW}))
    assert own.whole
