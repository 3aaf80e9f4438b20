"""What a failing test on a cluster shows of it: the cluster is gone when somebody reads the
report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from demo import installation
from demo.kubectl import CommandError

_LINES = 150
"""How many lines of each log."""
_OPERATOR = "app.kubernetes.io/part-of=regroup"
_SECONDS = 20.0


def look_at(kubectl: Callable[..., str], namespace: str) -> Iterator[tuple[str, str]]:
    """Titles and texts: jobs, pods and Events of a namespace, logs of its coordinators, and the
    operator's pods, Lease and logs, those before a restart too. What cannot be had says why.
    """
    here, system = ("-n", namespace), ("-n", installation.SYSTEM)
    logs = ("logs", f"--tail={_LINES}", "--prefix", "--ignore-errors")
    commands = {
        "Jobs": ("get", "trainingjobs", *here, "-o", "yaml"),
        "Pods": ("get", "pods", *here, "-o", "wide"),
        "Events": ("get", "events", *here, "--sort-by=.lastTimestamp"),
        "Coordinators": (*logs, *here, "-l", "regroup.dev/role=coordinator"),
        "Operator's pods": ("get", "pods", *system, "-o", "wide"),
        "Operator's Lease": ("get", "lease", "regroup-operator", *system, "-o", "yaml"),
        "Operator": (*logs, *system, "-l", _OPERATOR),
        "Operator before its restart": (*logs, *system, "-l", _OPERATOR, "--previous"),
    }
    for title, command in commands.items():
        try:
            yield title, kubectl(*command, timeout=_SECONDS)
        except CommandError as error:
            yield title, str(error)
