"""Which workers count as seen to end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regroup_operator.informer.job_pods import OwnedPod, SeenPod
from regroup_operator.informer.object_cache import Change
from regroup_operator.informer.worker_ends import WorkerEnds
from regroup_operator.observe.observed import EndedWorkers, Pod
from tests.support.job_memory import make_pod, make_pod_watch
from tests.support.rendering import make_valid_job

JOB = make_valid_job()
FORMER = replace(JOB, uid="former")
NONE = EndedWorkers()


def seen(incarnation: int, index: int = 0, *, name: str = "", uid: str = JOB.uid) -> SeenPod:
    document = make_pod(replace(JOB, uid=uid), name or f"{JOB.name}-w{index}-{incarnation}")
    document["metadata"]["labels"] |= {"regroup.dev/index": str(index)}
    return make_pod_watch().read(document)


def gone(*given: int, name: str = "", uid: str = JOB.uid) -> Change[OwnedPod]:
    return Change(JOB.key, seen(*given, name=name, uid=uid), None)


def made(*workers: tuple[int, int]) -> WorkerEnds:
    """Of a process that has asked for these."""
    ends = WorkerEnds()
    for index, incarnation in workers:
        ends.note_request(JOB, index, incarnation)
    return ends


def test_a_worker_that_the_watch_shows_to_be_gone_has_ended() -> None:
    ends = made((0, 1), (1, 1), (2, 1))
    assert ends.of(JOB, ()) == NONE
    ends.note_change(gone(1))
    assert ends.of(JOB, ()) == EndedWorkers(frozenset({0}), frozenset({"uid-gpt-w0-1"}))
    ends.note_change(Change(JOB.key, None, seen(1, 1)))
    ends.note_change(Change(JOB.key, seen(1, 2), seen(1, 2)))
    assert ends.of(JOB, ()).indexes == {0}


def test_one_after_which_another_was_asked_for_does_not_count() -> None:
    """The answer may be lost, and the watch may leave the other one out."""
    ends = made((0, 1), (0, 2))
    ends.note_change(gone(1))
    assert ends.of(JOB, (Pod("gpt-w0-1", "uid", "worker", 0, -1, "Failed"),)) == NONE
    ends.note_change(gone(2))
    assert ends.of(JOB, ()).indexes == {0}
    ends.note_request(JOB, 0, 3)
    assert ends.of(JOB, ()) == NONE


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_one_that_is_there_and_lives_no_more_has_ended(phase: str) -> None:
    pod = Pod("gpt-w3-2", "uid", "worker", 3, -1, phase)
    leader = Pod("gpt-c1", "uid-c", "coordinator", -1, 1, phase)
    ends = made((3, 2))
    assert ends.of(JOB, (pod, leader)) == EndedWorkers(frozenset({3}), frozenset({"uid"}))
    assert ends.of(JOB, (replace(pod, phase="Running"),)) == NONE
    assert ends.of(JOB, (replace(pod, terminating=True),)) == NONE
    assert WorkerEnds().of(JOB, (pod,)) == NONE, "another process may have replaced it"


def test_what_has_its_labels_or_belongs_to_a_former_job_of_this_name_does_not_count() -> None:
    ends = made((0, 1))
    ends.note_change(gone(1, uid="former"))
    ends.note_change(gone(1, name="other-w0-1"))
    assert ends.of(JOB, (Pod("other-w0-1", "uid", "worker", 0, -1, "Failed"),)) == NONE
    ends.note_change(gone(1))
    assert ends.of(FORMER, ()) == NONE
    assert ends.of(JOB, ()).indexes == {0}
    ends.note_request(FORMER, 1, 1)
    assert ends.of(JOB, ()) == NONE
    ends.forget(JOB.key)
    ends.note_change(gone(1))
    assert ends.of(JOB, ()) == ends.of(FORMER, ()) == NONE
