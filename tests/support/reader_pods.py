"""Plays the scheduler and the kubelet for the pods that read a job's volume for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import Kubelets
from tests.support.repeating import repeated


def readers(team: Namespace) -> list[Json]:
    """Those that are there."""
    pods = team.api.list_all(team.core("pods"))
    return [pod for pod in pods if "-reader-" in str(pod["metadata"]["name"])]


def uid(pod: Json) -> str:
    """By which a pod differs from a later one of its name."""
    return str(pod["metadata"]["uid"])


@contextmanager
def running_readers(team: Namespace, node: str) -> Iterator[list[Json]]:
    """Inside, each gets this node, and runs unless it is deleted before. Yields them."""
    kubelets, ran = Kubelets(team), list[Json]()

    def run() -> None:
        for pod in readers(team):
            if not pod["spec"].get("nodeName"):
                ran.append(pod)
                try:
                    kubelets.run(pod["metadata"]["name"], node)
                except AssertionError:
                    if uid(pod) in map(uid, readers(team)):
                        raise

    with repeated(run, 0.1):
        yield ran
