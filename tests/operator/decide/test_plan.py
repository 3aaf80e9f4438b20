"""Which plans must not rest on pods from memory alone."""

from __future__ import annotations

import pytest

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.decide.plan import (
    Action,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    DeletePod,
    EnsureService,
    Plan,
    PostLost,
)
from regroup_operator.observe.observed import EndedWorkers, Pod

NONE = EndedWorkers()
POD = Pod("gpt-w0-1", "uid", "worker", 0, -1, "Running")
GRAVE = (
    CreateCoordinator(2, ()),
    CreateStore(2, ()),
    CreateWorker(0, 2, ()),
    DeletePod(POD, "its node is gone", 0),
    PostLost(("uid",), "it is gone"),
)
HARMLESS = (
    CreateCoordinator(1, ()),
    CreateStore(1, ()),
    CreateWorker(7, 1, ()),
    DeletePod(POD, "suspended"),
    EnsureService(2),
)


@pytest.mark.parametrize("action", GRAVE, ids=str)
@pytest.mark.parametrize("ended", [NONE, EndedWorkers(frozenset({1}), frozenset({"other"}))])
def test_what_an_overlooked_pod_would_make_wrong_needs_a_list(
    action: Action, ended: EndedWorkers
) -> None:
    assert needs_list(EnsureService(1), action, ended=ended)


@pytest.mark.parametrize("action", HARMLESS, ids=str)
def test_the_first_of_everything_and_what_names_a_uid_need_none(action: Action) -> None:
    assert not needs_list(action)


def test_what_follows_a_worker_that_was_seen_to_end_needs_none() -> None:
    ended = EndedWorkers(frozenset({0}), frozenset({"uid"}))
    replaced = CreateWorker(0, 2, ()), PostLost(("uid",), "it is gone")
    assert not needs_list(*replaced, ended=ended)
    assert needs_list(*replaced, CreateWorker(1, 2, ()), ended=ended)
    assert needs_list(*replaced, PostLost(("uid", "other"), "both are gone"), ended=ended)
    assert needs_list(*replaced, CreateCoordinator(2, ()), ended=ended)


def needs_list(*actions: Action, ended: EndedWorkers = NONE) -> bool:
    return Plan(TrainingJobStatus(), actions).needs_fresh_pods(TrainingJobStatus(), ended)
