"""The training side: coordinator, agents and rank processes; knows nothing of Kubernetes.

`Session` makes a training loop of your own elastic and fault-tolerant. It is loaded when it is
first asked for, since it imports torch, which coordinator, agent, operator and client never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regroup_trainer.rank.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from regroup_trainer.rank.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
