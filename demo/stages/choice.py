"""Chooses the cluster of the demo and states the reason."""

from __future__ import annotations

from collections.abc import Callable

from demo.checks import LOCAL
from demo.errors import DemoError
from demo.screen import Screen
from demo.stages.current import CurrentStage
from demo.stages.devcluster import DevclusterStage
from demo.stages.kind import KindStage
from demo.stages.stage import Stage
from devcluster.errors import DevclusterError
from devcluster.machine import preflight

STAGES: dict[str, Callable[[Screen], Stage]] = {
    "devcluster": DevclusterStage.up,
    "kind": KindStage.up,
    "current": CurrentStage.up,
}


def choose(asked: str | None) -> tuple[str, str]:
    """The kind of stage and the reason for the choice.

    Without `asked`, the first that is possible of devcluster, kind and no cluster. Raises DemoError
    for an unknown kind.
    """
    if asked:
        if asked not in (*STAGES, LOCAL):
            raise DemoError(f"CLUSTER is {asked!r}: choose one of {', '.join((*STAGES, LOCAL))}")
        return asked, f"CLUSTER={asked} asks for it"
    try:
        preflight()
    except DevclusterError as refused:
        if KindStage.available():
            return (
                "kind",
                f"this machine cannot run a devcluster ({refused}), but it has Docker and kind",
            )
        return (
            LOCAL,
            f"this machine cannot run a devcluster ({refused}) and lacks kind or Docker",
        )
    return (
        "devcluster",
        "this machine can run it: a real Kubernetes with three nodes, without Docker",
    )
