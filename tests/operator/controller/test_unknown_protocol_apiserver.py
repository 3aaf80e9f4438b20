"""After the way back from a newer release: the coordinator of a job is killed whose protocol this
release does not speak. On a real API server.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest

from regroup_trainer.protocol.message import PROTOCOL_VERSION
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, member
from tests.support.operator_simulation import make_coordinator_status
from tests.support.running_job import run_workers, start_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

UNKNOWN = PROTOCOL_VERSION + 1
ADVICE = f"speaks protocol {UNKNOWN}"
ENDED_ROUNDS = "controller_runtime_reconcile_time_seconds_count"
ROUNDS = 10
"""In which nothing may be made."""


class NewerCoordinator(CoordinatorStub):
    """Of the newer release."""

    def __init__(self, kubelets: Kubelets, term: int) -> None:
        workers = kubelets.pods("worker").values()
        members = tuple(member(pod, rank) for rank, pod in enumerate(workers))
        super().__init__(make_coordinator_status(protocol=UNKNOWN, term=term, members=members))


def run_of_newer_release(namespace: Namespace, operator: OperatorProcess) -> Kubelets:
    """A job whose three workers train, as the newer release has left it, while no operator runs."""
    kubelets = start_job(namespace)
    wait_until("its phase", lambda: namespace.read()["status"].get("phase"))
    run_workers(kubelets)
    operator.kill(namespace.api)
    stored = namespace.read()["status"]
    trained = {"phase": "Running", "rendezvousGeneration": "1.1", "worldSize": 3}
    assert namespace.write_status({**stored, **trained, "protocolVersion": UNKNOWN}).status == 200
    return kubelets


def expect_advice(namespace: Namespace, name: str) -> None:
    def is_given() -> bool:
        message = namespace.read()["status"]["message"]
        return f"coordinator pod {name} {ADVICE}" in message and message.endswith(
            "suspend and resume the job"
        )

    wait_until(f"what to do about {name}", is_given, seconds=60)


def expect_rest(operator: OperatorProcess, namespace: Namespace, term: int) -> None:
    """For some rounds, of which each follows a change of a pod, nothing is made or ended."""
    kubelets = Kubelets(namespace)
    before = uids(kubelets)
    for number in range(ROUNDS):
        more = operator.total(ENDED_ROUNDS) + 1
        kubelets.set_ready("gpt-w0-1", ready=number % 2 == 1)
        wait_until("a round", partial(has_rounds, operator, more))
    assert uids(kubelets) == before
    status = namespace.read()["status"]
    assert (status["coordinatorTerm"], status["protocolVersion"]) == (term, UNKNOWN)
    assert (status["phase"], status.get("podFailures", 0)) == ("Running", 0)


def has_rounds(operator: OperatorProcess, rounds: float) -> bool:
    return operator.total(ENDED_ROUNDS) >= rounds


def uids(kubelets: Kubelets, role: str = "") -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in kubelets.pods(role).items()}


def test_a_killed_coordinator_gets_one_successor_and_the_message_says_suspend_and_resume(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    kubelets = run_of_newer_release(namespace, operator)
    workers = uids(kubelets, "worker")
    with ExitStack() as serving:
        first = serving.enter_context(NewerCoordinator(kubelets, term=1))
        kubelets.run("gpt-c1", "n1", first.address)
        operator.start()
        expect_advice(namespace, "gpt-c1")
        expect_rest(operator, namespace, term=1)

        kubelets.write("gpt-c1", {"phase": "Failed", "reason": "Evicted"})
        wait_until("a successor", lambda: "gpt-c2" in kubelets.pods(), seconds=60)
        expect_advice(namespace, "gpt-c2")
        second = serving.enter_context(NewerCoordinator(kubelets, term=2))
        kubelets.run("gpt-c2", "n2", second.address)
        wait_until("a question to it", lambda: second.tokens, seconds=60)
        expect_advice(namespace, "gpt-c2")
        expect_rest(operator, namespace, term=2)
        assert uids(kubelets, "worker") == workers
        assert (first.desired, second.desired, second.lost) == ([], [], [])
