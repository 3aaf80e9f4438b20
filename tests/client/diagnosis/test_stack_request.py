"""Which pods are asked for the stacks of their ranks, and what their answers mean."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from regroup.diagnosis.rank_stacks import WorkerAnswer
from regroup.diagnosis.stack_request import AT_ONCE, ask_workers
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.kubernetes.pod_record import PodRecord, read_pods
from regroup_trainer.protocol.agent_messages import RankStack, WorkerStacks

SHOWN = WorkerStacks(ranks=(RankStack(rank=0, text="Thread"),))


class PlayedPods:
    """Answers as it is configured."""

    def __init__(self, *answers: CommandOutput | ClusterError, together: int = 1) -> None:
        self.asked: list[tuple[str, Sequence[str]]] = []
        self._answers = list(answers)
        self._together = threading.Barrier(together)

    def run_in_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> CommandOutput:
        self._together.wait(60)
        self.asked.append((f"{namespace}/{pod.name}", words))
        answer = self._answers.pop() if self._answers else printed(SHOWN.model_dump_json())
        if isinstance(answer, ClusterError):
            raise answer
        return answer


def printed(stdout: str, stderr: str = "", code: int = 0) -> CommandOutput:
    return CommandOutput(stdout, stderr, code)


def make_pods(count: int, phase: str = "Running", role: str = "worker") -> list[PodRecord]:
    command = ["python", "-P", "-m", "regroup_trainer.agent"]
    return read_pods(
        {
            "metadata": {"name": f"gpt-w{n}-1", "labels": {"regroup.dev/role": role}},
            "spec": {"containers": [{"name": "trainer", "command": command}]},
            "status": {"phase": phase},
        }
        for n in range(count)
    )


def test_a_worker_is_asked_by_the_program_that_started_its_agent() -> None:
    pods = PlayedPods()
    (answer,) = ask_workers(pods, "team", make_pods(1))
    assert answer == WorkerAnswer("gpt-w0-1", SHOWN.ranks)
    program = ["python", "-P", "-m", "regroup_trainer.agent.stacks"]
    assert pods.asked == [("team/gpt-w0-1", program)]


def test_only_running_workers_are_asked() -> None:
    pods = PlayedPods()
    assert ask_workers(pods, "team", make_pods(1, role="coordinator")) == []
    (answer,) = ask_workers(pods, "team", make_pods(1, "Pending"))
    assert (answer.missing, pods.asked) == ("is Pending", [])


def test_many_are_asked_at_once() -> None:
    pods = PlayedPods(together=AT_ONCE)
    answers = ask_workers(pods, "team", make_pods(2 * AT_ONCE))
    assert len(answers) == 256
    assert {answer.missing for answer in answers} == {""}


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (printed("", "no\nagent", 1), "does not answer: no agent"),
        (printed("", "", 127), "does not answer: exit code 127"),
        (printed("\n"), "runs a release that cannot show stacks"),
        (printed('{"ranks": 7}'), "runs another release, whose answer cannot be read"),
        (ClusterError("no answer within 8 s"), "does not answer: no answer within 8 s"),
    ],
)
def test_why_a_pod_shows_nothing(answer: CommandOutput | ClusterError, missing: str) -> None:
    (found,) = ask_workers(PlayedPods(answer), "team", make_pods(1))
    assert (found.missing, found.ranks) == (missing, ())


def test_without_the_right_to_ask_nothing_is_shown() -> None:
    with pytest.raises(ClusterError):
        ask_workers(PlayedPods(ClusterError("forbidden", 403)), "team", make_pods(2))
