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
from regroup_operator.observe.observed import Pod

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
def test_what_an_overlooked_pod_would_make_wrong_needs_a_list(action: Action) -> None:
    assert Plan(TrainingJobStatus(), (EnsureService(1), action)).needs_fresh_pods(
        TrainingJobStatus()
    )


@pytest.mark.parametrize("action", HARMLESS, ids=str)
def test_the_first_of_everything_and_what_names_a_uid_need_none(action: Action) -> None:
    assert not Plan(TrainingJobStatus(), (action,)).needs_fresh_pods(TrainingJobStatus())
