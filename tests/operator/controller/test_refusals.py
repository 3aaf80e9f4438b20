"""What a refused action holds back, and for how long."""

from __future__ import annotations

import pytest

from regroup_operator.controller.refusals import (
    PODS,
    QUIET_CONFLICTS,
    Kind,
    Refusals,
    made_nothing,
    stopped_by,
)
from regroup_operator.controller.work_queue import LONGEST_PAUSE_SECONDS
from regroup_operator.decide.plan import (
    CreateCoordinator,
    CreateWorker,
    DeletePod,
    EnsureAccess,
    EnsureDisruptionBudget,
    EnsureService,
    PutDesired,
)
from regroup_operator.errors import ClusterError, ConflictError, ObjectConflictError
from regroup_trainer.protocol.waiting_reasons import WaitingReason

QUOTA = ClusterError("POST", "/pods", 403, "exceeded quota")


def test_a_refusal_stops_its_own_kind_and_pods_need_what_isolates_and_names_them() -> None:
    for kind in (CreateWorker, CreateCoordinator, DeletePod, EnsureDisruptionBudget, PutDesired):
        assert stopped_by(kind) == {kind}
    for needed in (EnsureAccess, EnsureService):
        assert stopped_by(needed) == {needed, *PODS}


def test_only_a_refusal_that_is_sure_and_no_taken_name_has_made_nothing() -> None:
    creation = CreateCoordinator(1, ())
    assert made_nothing(creation, {CreateWorker: ClusterError("POST", "/pods", 0, "no answer")})
    assert made_nothing(creation, {CreateCoordinator: QUOTA})
    for error in (
        ClusterError("POST", "/pods", 0, "no answer"),
        ClusterError("POST", "/pods", 504, "timeout"),
        ConflictError("POST", "/pods", 409, "try again"),
        ObjectConflictError("the name is taken"),
    ):
        assert not made_nothing(creation, {CreateCoordinator: error})


def test_a_refused_kind_waits_longer_each_time_while_nothing_changes() -> None:
    refusals, now, pauses = Refusals(), 0.0, []
    for _ in range(12):
        refusals.note_round({CreateWorker}, {CreateWorker: QUOTA}, (), "scene", now)
        assert refusals.held("scene", now) == {CreateWorker}
        pause = refusals.due(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
        assert refusals.held("scene", now) == frozenset()
    assert pauses[0] < 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_a_pause_that_ends_in_the_course_of_a_round_keeps_its_count() -> None:
    refusals = Refusals()
    refusals.note_round({CreateWorker}, {CreateWorker: QUOTA}, (), "scene", 0.0)
    refusals.note_round({DeletePod}, {}, {"CreateWorker"}, "scene", 50.0)
    assert refusals.due(50.0) == 0.0
    refusals.note_round({CreateWorker}, {CreateWorker: QUOTA}, (), "scene", 50.0)
    pause = refusals.due(50.0)
    assert pause is not None
    assert pause > 0.3


def test_it_is_tried_at_once_when_the_spec_or_the_pods_have_changed() -> None:
    refusals = Refusals()
    refusals.note_round({CreateWorker}, {CreateWorker: QUOTA}, (), "scene", 0.0)
    assert refusals.held("another scene", 0.0) == frozenset()


def test_it_is_explained_until_it_is_tried_again_with_success() -> None:
    refusals = Refusals()
    refusals.note_round({CreateWorker}, {CreateWorker: QUOTA}, (), "scene", 0.0)
    refusals.note_round({DeletePod}, {}, {"CreateWorker"}, "scene", 0.1)
    assert refusals.explain() == (WaitingReason.ApiError, "POST /pods: 403 exceeded quota")
    refusals.note_round({CreateWorker}, {}, (), "scene", 100.0)
    assert refusals.explain() == (WaitingReason.ApiError, "")
    assert refusals.due(100.0) is None


CHANGED = ConflictError("PATCH", "/poddisruptionbudgets/gpt", 409, "it was changed")


def test_a_conflict_is_tried_again_quietly_and_explained_only_when_it_lasts() -> None:
    refusals, now = Refusals(), 0.0
    for _ in range(QUIET_CONFLICTS):
        refusals.note_round(
            {EnsureDisruptionBudget}, {EnsureDisruptionBudget: CHANGED}, (), "scene", now
        )
        assert refusals.explain() == (WaitingReason.ApiError, "")
        pause = refusals.due(now)
        assert pause is not None
        now += pause
    assert now < 5.0
    refused: dict[Kind, Exception] = {EnsureDisruptionBudget: CHANGED, CreateWorker: QUOTA}
    refusals.note_round(refused.keys(), refused, (), "scene", now)
    assert refusals.explain()[1] == str(CHANGED)


def test_a_quiet_conflict_does_not_hide_another_refusal() -> None:
    refusals = Refusals()
    refused: dict[Kind, Exception] = {EnsureDisruptionBudget: CHANGED, CreateWorker: QUOTA}
    refusals.note_round(refused.keys(), refused, (), "scene", 0.0)
    assert refusals.explain() == (WaitingReason.ApiError, str(QUOTA))


def test_a_conflict_that_pods_wait_for_is_explained_at_once() -> None:
    refusals = Refusals()
    refusals.note_round({EnsureService, CreateWorker}, {EnsureService: CHANGED}, (), "scene", 0.0)
    assert refusals.held("scene", 0.0) == {EnsureService, CreateWorker}
    assert refusals.explain() == (WaitingReason.ApiError, str(CHANGED))


FULL = 'pods "gpt-w0-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=4'
UNSET = 'pods "gpt-w0-1" is forbidden: failed quota: few: must specify limits.memory for: trainer'


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (FULL, "raise the quota, free what uses it, or ask for less"),
        (UNSET, "set what it asks for in spec.template"),
    ],
)
def test_a_quota_has_its_own_reason_and_says_what_to_do(message: str, advice: str) -> None:
    refusals, error = Refusals(), ClusterError("POST", "/pods", 403, message, "Forbidden")
    refusals.note_round({CreateWorker}, {CreateWorker: error}, (), "scene", 0.0)
    sentence = f"a quota of the namespace refuses an object: {message} ({advice})"
    assert refusals.explain() == (WaitingReason.QuotaExceeded, sentence)


def test_a_quota_in_the_name_of_an_object_is_no_quota() -> None:
    refusals, error = Refusals(), ClusterError("POST", "/exceeded quota: x", 403, "no right")
    refusals.note_round({CreateWorker}, {CreateWorker: error}, (), "scene", 0.0)
    assert refusals.explain()[0] == WaitingReason.ApiError


def test_an_object_of_somebody_else_has_its_own_reason_and_holds_back_pods() -> None:
    refusals, error = Refusals(), ObjectConflictError("Service gpt-coordinator is not the job's")
    planned = {EnsureService, CreateCoordinator, DeletePod}
    refusals.note_round(planned, {EnsureService: error}, (), "scene", 0.0)
    assert refusals.held("scene", 0.0) == {EnsureService, CreateCoordinator}
    assert refusals.explain() == (WaitingReason.ObjectConflict, str(error))
