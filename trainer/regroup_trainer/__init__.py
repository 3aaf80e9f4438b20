"""The training side: coordinator, agents and rank processes; knows nothing of Kubernetes.

`Session` makes a training loop of your own elastic and fault-tolerant. `report` shows the steps of
any script. Both are loaded when they are first asked for: coordinator, agent, operator and client
never import torch, which `Session` needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regroup_trainer.rank.script_report import report
    from regroup_trainer.rank.session import Session

__all__ = ["Session", "report"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from regroup_trainer.rank.session import Session

        return Session
    if name == "report":
        from regroup_trainer.rank.script_report import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
