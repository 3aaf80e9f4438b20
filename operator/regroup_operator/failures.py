"""What the end of a pod means: a table of rules, first match wins. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup_operator.observed import Pod
from regroup_trainer.contract import Cause

Action = Literal["FailJob", "Restart", "RestartIgnoreBudget"]

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
"""Waiting reasons of a container whose image cannot be had."""
HOPELESS_IMAGE_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Those of them that waiting cannot mend."""


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    matches: Callable[[Pod], bool]
    action: Action
    cause: Cause
    """What it counts as where nobody else tells why a worker was lost."""
    blames_node: bool = False
    """Whether the failure counts against the node."""


_DISRUPTED = frozenset({"Evicted", "Preempting", "Shutdown", "Terminated", "NodeShutdown"})
_NODE_REASONS = frozenset({"NodeLost", "NodeAffinity", "UnexpectedAdmissionError"})
_IGNORE: Action = "RestartIgnoreBudget"

RULES = (
    Rule("disruption", lambda pod: "DisruptionTarget" in pod.true_conditions, _IGNORE, "preemption"),
    Rule("eviction", lambda pod: pod.reason in _DISRUPTED, _IGNORE, "preemption"),
    Rule("node loss", lambda pod: pod.reason in _NODE_REASONS, _IGNORE, "infrastructure", True),
    Rule("out of memory", lambda pod: pod.exit_reason == "OOMKilled", "Restart", "application"),
    Rule("wrong usage", lambda pod: pod.exit_code == 2, "FailJob", "application"),
    Rule("not executable", lambda pod: pod.exit_code in (126, 127), "FailJob", "application"),
    Rule("asked to leave", lambda pod: pod.exit_code in (0, 143), _IGNORE, "preemption"),
    Rule("lost a peer", lambda pod: pod.exit_code == 75, _IGNORE, "infrastructure"),
    Rule("killed", lambda pod: pod.exit_code == 137, _IGNORE, "infrastructure"),
    Rule("container never ran", lambda pod: pod.exit_code is None, _IGNORE, "infrastructure", True),
    Rule("program failed", lambda _pod: True, "Restart", "application"),
)
"""The built-in rules: disruptions, node loss and 143 ignore the budget; 2, 126 and 127 fail the job."""


def classify(pod: Pod) -> Rule:
    """The rule for a pod that ended."""
    return next(rule for rule in RULES if rule.matches(pod))


def describe(pod: Pod, rule: Rule) -> str:
    """One sentence on the end of a pod."""
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    why = (pod.exit_message or pod.message).strip().rsplit("\n", 1)[-1]
    return f"{pod.role} pod {pod.name} ended{code} ({rule.name})" + (f": {why}" if why else "")


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """Pause before the pod is replaced: none after the first failure in a row, then doubling."""
    return 0.0 if failures <= 1 else min(longest, first * 2.0 ** min(failures - 2, 30))
