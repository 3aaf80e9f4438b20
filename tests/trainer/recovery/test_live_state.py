"""Which state a rank between two generations offers to the next one, and what becomes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import Layout, RunIdentity
from regroup_trainer.checkpoint.save_schedule import SaveTimer
from regroup_trainer.errors import GenerationOverError
from regroup_trainer.parallel.process_group import GenerationGroup, is_peer_loss
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.protocol.rank_messages import RankReport
from regroup_trainer.recovery import live_state
from regroup_trainer.recovery.inventory import Agreement, StateInventory
from regroup_trainer.recovery.live_state import LiveState, continue_live_state
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.restorer import Restorer
from regroup_trainer.recovery.step_log import StepLog
from regroup_trainer.step.commit import Commit
from regroup_trainer.step.proposal import Share
from regroup_trainer.step.state import Position, TrainState
from regroup_trainer.step.stepper import Stepper
from regroup_trainer.step.updater import StateUpdater
from tests.support.checkpoints import DATA, begin
from tests.support.ranks import generation, train_config
from tests.support.volume import NotedReports, access, be_alone
from tests.support.whole_state import equal

OLD, NEW = GenerationNumber(1, 1), GenerationNumber(1, 2)
COMMIT = Commit(tokens=10, loss=1.0, gradient_norm=1.0, digest=7, decision=Decision.CONTINUE)
CONFIG = train_config()
GROUP = GenerationGroup(0, 1, 0, torch.device("cpu"))


class Breaking(torch.optim.SGD):
    """An optimizer that is interrupted half-way."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        raise RuntimeError("Connection closed by peer")


class NoVolume:
    """A Restorer whose volume knows nothing newer."""

    group = GROUP
    identity = RunIdentity(model={}, strategy="ddp", data=DATA)
    record = generation(Path(), 1, CONFIG, number=NEW).model_copy(update={"restored_from": "Peers"})

    def is_newest(self, agreement: Agreement) -> bool:
        return True


def make_stepper(optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> Stepper:
    model = nn.Linear(1, 1)
    state = TrainState(model, optimizer(model.parameters(), lr=0.1), Position(5, 50, 500))
    return Stepper(state, CONFIG, GROUP, targets_per_sample=1)


def make_resident() -> ResidentState:
    return ResidentState(OLD, 1, make_stepper().updater, StepLog(), 0, 1, SaveTimer())


def go_on(resident: ResidentState, volume: Restorer | None = None) -> LiveState | None:
    return continue_live_state(
        volume or cast(Restorer, NoVolume()),
        CONFIG,
        resident,
        lambda _group, _resident: resident.state,
        lambda _result: None,
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only rank of its generation."""
    monkeypatch.setattr(live_state, "all_gather", lambda mine: [mine])


def test_a_state_in_which_an_update_is_half_done_is_not_whole() -> None:
    stepper = make_stepper(Breaking)
    stepper.state.model(torch.ones(1)).sum().backward()
    stepper.propose(Share(1, 1.0, 1), Decision.CONTINUE)
    with pytest.raises(RuntimeError, match="closed by peer"):
        stepper.commit()
    assert not stepper.updater.whole


def test_a_step_that_was_proposed_before_its_gradients_are_reduced_is_not_prepared() -> None:
    """Nobody may complete it with a peer's commit: the gradients of this rank alone are no step."""
    stepper = make_stepper()
    stepper.propose(Share(1, 1.0, 1), Decision.CONTINUE)
    assert stepper.updater.whole
    assert not stepper.updater.prepared


def test_a_prepared_step_is_forgotten_with_the_wrapper_that_had_its_gradients(alone: None) -> None:
    own = make_resident()
    own.updater.prepare()
    assert own.retained().prepared
    assert go_on(own) is not None
    assert not own.retained().prepared


@pytest.mark.parametrize("committed", [False, True], ids=["began only", "may have committed"])
def test_a_state_in_memory_is_the_newest_only_if_no_generation_since_may_have_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None, committed: bool
) -> None:
    layout, newest = Layout(tmp_path), GenerationNumber(1, 3)
    layout.lineage.mkdir()
    for number, parent in ((OLD, None), (NEW, OLD)):
        began = lineage.LineageRecord(
            generation=number, parent=parent, resumed_from_step=0, resume=ResumePolicy(), data=DATA
        )
        lineage.begin(layout, began)
    record = generation(tmp_path, 1, CONFIG, number=newest).model_copy(
        update={"restored_from": "Peers"}
    )
    identity = RunIdentity(model={}, strategy="ddp", data=DATA)
    own = make_resident()
    if not committed:
        own.enter(NEW)  # it was there, and knows
    be_alone(monkeypatch)
    live = go_on(own, Restorer(layout, record, GROUP, identity, access(record)))
    assert (live is None) == committed


@dataclass
class Repairing(NotedReports):
    """Puts a folder back once its absence is reported."""

    away: Path = Path()
    place: Path = Path()

    def send(self, report: RankReport) -> None:
        super().send(report)
        if self.problems and self.away.exists():
            shutil.rmtree(self.place)
            self.away.rename(self.place)


def test_a_folder_without_the_states_own_generation_is_not_the_jobs_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    """A coordinator makes folders that are gone. Empty ones are no sign of an abandoned line."""
    layout = Layout(tmp_path / "job")
    layout.lineage.mkdir(parents=True)
    begin(layout, OLD.n)
    channel = Repairing(away=tmp_path / "away", place=layout.directory)
    layout.directory.rename(channel.away)
    layout.lineage.mkdir(parents=True)
    record = NoVolume.record
    be_alone(monkeypatch)
    identity = RunIdentity(model={}, strategy="ddp", data=DATA)
    assert go_on(
        make_resident(), Restorer(layout, record, GROUP, identity, access(record, channel))
    )
    assert "not the folder in which generation 1.1 began" in channel.problems[0].error


def test_behind_the_guard_a_torn_commit_leaves_a_whole_state_and_a_prepared_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where the update is queued before the host knows the commit."""

    def stepper_at_commit() -> Stepper:
        torch.manual_seed(0)
        stepper = make_stepper(lambda parameters, lr: torch.optim.AdamW(parameters, lr, fused=True))
        monkeypatch.setattr(StateUpdater, "guarded", True)
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
    updater = torn.updater
    assert (updater.whole, updater.prepared, torn.state.position.step) == (True, True, 6)
    assert equal(before, (torn.state.model.state_dict(), torn.state.optimizer.state_dict()))
    updater.apply(undisturbed.commit().commit)
    assert torn.state.position == undisturbed.state.position
    for mine, other in zip(
        torn.state.model.parameters(), undisturbed.state.model.parameters(), strict=True
    ):
        assert torch.allclose(mine, other, rtol=1e-6)


def test_a_state_that_is_being_overwritten_when_its_generation_breaks_is_not_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = make_resident()

    def break_off(*_: object) -> bool:
        raise ConnectionError("Connection closed by peer")

    peer = StateInventory(0, OLD, 7, False, COMMIT)
    monkeypatch.setattr(live_state, "all_gather", lambda mine: [mine, peer])
    monkeypatch.setattr(live_state, "receive", break_off)
    with pytest.raises(ConnectionError):
        go_on(own)
    assert not own.whole


def test_a_generation_that_is_entered_and_not_trained_in_counts_as_unused(alone: None) -> None:
    own = make_resident()
    live = go_on(own)
    assert live is not None
    agreed = live.agreement
    assert (agreed.generation, agreed.step, agreed.unused) == (OLD, 5, frozenset({NEW}))
    assert own.whole


def test_a_completed_step_is_logged_and_brought_to_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = make_resident()
    own.state.model(torch.ones(1)).sum().backward()
    own.updater.prepare()
    peer = StateInventory(0, OLD, 6, False, COMMIT)
    monkeypatch.setattr(live_state, "all_gather", lambda mine: [mine, peer])
    completed: list[int] = []
    live = continue_live_state(
        cast(Restorer, NoVolume()),
        CONFIG,
        own,
        lambda _group, _resident: own.state,
        lambda result: completed.append(result.position.step),
    )
    assert live is not None
    assert completed == [6]
    assert [step.step for step in live.log.steps] == [6]
