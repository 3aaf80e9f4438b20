"""What the end of a pod means: a table of rules of which the first match decides. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup_operator.observe.observed import Pod
from regroup_trainer.protocol.exit_codes import (
    HOPELESS_EXIT_CODES,
    KILLED,
    PEER_LOST_EXIT_CODE,
    TERMINATED,
    WRONG_USAGE,
)
from regroup_trainer.protocol.ledger import Cause

FailureAction = Literal["FailJob", "Restart", "RestartIgnoreBudget"]

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
"""Waiting reasons of a container whose image cannot be pulled."""
HOPELESS_IMAGE_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Those of them that another try cannot mend."""


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    matches: Callable[[Pod], bool]
    action: FailureAction
    cause: Cause
    """What the loss counts as, where only the pod shows why it happened."""
    blames_node: bool = False
    """Whether the failure counts against the node."""


_DISRUPTED = frozenset({"Evicted", "Preempting", "Shutdown", "Terminated", "NodeShutdown"})
_NODE_REASONS = frozenset({"NodeLost", "NodeAffinity", "UnexpectedAdmissionError"})
_IGNORE: FailureAction = "RestartIgnoreBudget"

RULES = (
    Rule(
        "disruption", lambda pod: "DisruptionTarget" in pod.true_conditions, _IGNORE, "preemption"
    ),
    Rule("eviction", lambda pod: pod.reason in _DISRUPTED, _IGNORE, "preemption"),
    Rule("node loss", lambda pod: pod.reason in _NODE_REASONS, _IGNORE, "infrastructure", True),
    Rule("out of memory", lambda pod: pod.exit_reason == "OOMKilled", "Restart", "application"),
    Rule("wrong usage", lambda pod: pod.exit_code == WRONG_USAGE, "FailJob", "application"),
    Rule(
        "not executable", lambda pod: pod.exit_code in HOPELESS_EXIT_CODES, "FailJob", "application"
    ),
    Rule("asked to leave", lambda pod: pod.exit_code in (0, TERMINATED), _IGNORE, "preemption"),
    Rule(
        "lost a peer", lambda pod: pod.exit_code == PEER_LOST_EXIT_CODE, _IGNORE, "infrastructure"
    ),
    Rule("killed", lambda pod: pod.exit_code == KILLED, _IGNORE, "infrastructure"),
    Rule("container never ran", lambda pod: pod.exit_code is None, _IGNORE, "infrastructure", True),
    Rule("program failed", lambda _pod: True, "Restart", "application"),
)
"""The built-in rules. Disruptions, node loss and SIGTERM ignore the budget of restarts."""


def classify(pod: Pod) -> Rule:
    """The rule for a pod that ended."""
    return next(rule for rule in RULES if rule.matches(pod))


def describe(pod: Pod, rule: Rule) -> str:
    """One sentence on the end of a pod."""
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    why = (pod.exit_message or pod.message).strip().rsplit("\n", 1)[-1]
    return f"{pod.role} pod {pod.name} ended{code} ({rule.name})" + (f": {why}" if why else "")
