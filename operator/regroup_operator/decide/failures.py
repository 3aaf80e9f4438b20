"""What the end of a pod means: a table of rules of which the first match decides. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup_operator.api.torchrun_end import lost_peer, names_failed_rank, was_refused
from regroup_operator.observe.observed import Pod
from regroup_trainer.protocol.exit_codes import (
    HOPELESS_EXIT_CODES,
    INTERRUPTED,
    KILLED,
    PEER_LOST_EXIT_CODE,
    TERMINATED,
    WRONG_USAGE,
)
from regroup_trainer.protocol.ledger import Cause
from regroup_trainer.protocol.message import printable

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
_ASKED_TO_END = (0, TERMINATED, INTERRUPTED)
_IGNORE: FailureAction = "RestartIgnoreBudget"
_UNKNOWN_END = 255
"""The exit code that a runtime gives a container whose end it did not see, such as after a power
cut. A program may end with it too: `sys.exit(-1)`.
"""
_UNKNOWN_REASONS = frozenset({"Unknown", "ContainerStatusUnknown"})
_START_REASONS = frozenset(
    {"StartError", "ContainerCannotRun", "CreateContainerError", "RunContainerError"}
)
"""Of a container whose program the runtime could not start. Its exit code says nothing: containerd
gives 128, others 126 or 127, whether the command is wrong or the node.
"""
CHECK_START = "check command, image and mounts of spec.template, and the node's runtime and devices"
"""What to do about a program that a runtime cannot start."""
_WHY = {
    "node restart": "its node or container runtime stopped before it could report why",
    "out of memory": "it reached its memory limit (raise limits.memory of spec.resources or "
    "spec.template, or use less)",
}
"""Rule -> why such a pod ended, whatever it wrote last."""
_PROGRESS = re.compile(r'(?:\S+ ){0,3}(?:DEBUG|INFO)\b|\{"time": "\S*", "level": "(?:DEBUG|INFO)"')
"""A line of a log that reports no failure. The kubelet takes a container's last lines for its
message when it wrote none.
"""


def _has_unknown_end(pod: Pod) -> bool:
    """Whether nobody saw how the container ended. Where our own message names a rank that failed,
    that is why.
    """
    unseen = pod.exit_code == _UNKNOWN_END and pod.exit_reason in _UNKNOWN_REASONS
    return unseen and _rank_failure(pod) is None and not names_failed_rank(pod.exit_message)


def is_refused(pod: Pod) -> bool:
    """Whether torchrun did not let this worker join: what closed the rendezvous counts instead."""
    return pod.term >= 0 and was_refused(pod.exit_message)


def _has_lost_peer(pod: Pod) -> bool:
    return pod.term >= 0 and lost_peer(pod.exit_message)


RULES = (
    Rule("disruption", lambda pod: pod.is_disrupted, _IGNORE, "preemption"),
    Rule("eviction", lambda pod: pod.reason in _DISRUPTED, _IGNORE, "preemption"),
    Rule("node loss", lambda pod: pod.reason in _NODE_REASONS, _IGNORE, "infrastructure", True),
    Rule("node restart", _has_unknown_end, _IGNORE, "infrastructure", True),
    Rule(
        "not started",
        lambda pod: pod.exit_reason in _START_REASONS,
        "Restart",  # bounded: the command may be wrong
        "infrastructure",
        True,
    ),
    Rule(
        "init container",
        lambda pod: bool(pod.ended_container) and pod.exit_code not in _ASKED_TO_END,
        "Restart",  # bounded: what it fetches may be away, or not exist
        "application",
    ),
    Rule("out of memory", lambda pod: pod.exit_reason == "OOMKilled", "Restart", "application"),
    Rule("wrong usage", lambda pod: pod.exit_code == WRONG_USAGE, "FailJob", "application"),
    Rule(
        "not executable", lambda pod: pod.exit_code in HOPELESS_EXIT_CODES, "FailJob", "application"
    ),
    Rule("asked to leave", lambda pod: pod.exit_code in _ASKED_TO_END, _IGNORE, "preemption"),
    Rule(
        "lost a peer", lambda pod: pod.exit_code == PEER_LOST_EXIT_CODE, _IGNORE, "infrastructure"
    ),
    Rule("torchrun lost a peer", _has_lost_peer, _IGNORE, "infrastructure"),
    Rule("torchrun refused it", is_refused, _IGNORE, "infrastructure"),
    Rule("killed", lambda pod: pod.exit_code == KILLED, _IGNORE, "infrastructure"),
    Rule("container never ran", lambda pod: pod.exit_code is None, _IGNORE, "infrastructure", True),
    Rule("program failed", lambda _pod: True, "Restart", "application"),
)
"""The built-in rules. Disruptions, node loss, SIGTERM and SIGINT ignore the budget of restarts."""


def classify(pod: Pod) -> Rule:
    """The rule for a pod that ended."""
    return next(rule for rule in RULES if rule.matches(pod))


def describe(pod: Pod, rule: Rule) -> str:
    """One sentence on the end of a pod: which, where, how it ended, and why."""
    where = f" on node {pod.node}" if pod.node else ""
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    name = f"{rule.name} {pod.ended_container}" if pod.ended_container else rule.name
    ended = f"{pod.role} pod {pod.name}{where} ended{code} ({name})"
    no_reason = ""
    if rule.cause == "application":
        which = f" -c {pod.ended_container}" if pod.ended_container else ""
        no_reason = f"it gave no reason (see kubectl logs {pod.name}{which})"
    return _with_why(ended, pod, rule, no_reason)


def describe_last_end(pod: Pod) -> str:
    """How a container that is started again and again ended last; empty where nothing shows it."""
    if pod.exit_code is None:
        return ""
    ended = f"it ended last with exit code {pod.exit_code}"
    return _with_why(ended, pod, classify(pod))


def _with_why(ended: str, pod: Pod, rule: Rule, otherwise: str = "") -> str:
    """`ended`, and why, where that is known; else `otherwise`."""
    why = _WHY.get(rule.name) or _why(pod) or otherwise
    return f"{ended}: {why}" if why else ended


def _why(pod: Pod) -> str:
    """The cause that the pod itself shows; empty when it shows none."""
    failure = _rank_failure(pod)
    if pod.exit_reason in _START_REASONS:
        report = ": ".join(filter(None, (pod.exit_reason, pod.exit_message.strip())))
        return printable(f"the container runtime reports {report} ({CHECK_START})")
    if failure is None and pod.exit_code == KILLED:  # what it wrote last is not why
        return f"SIGKILL from outside: out of memory? (see kubectl describe pod {pod.name})"
    text = pod.exit_message or pod.message
    if failure is not None:
        text = str(failure.get("message") or f"exit code {failure.get('exitCode')}")
    lines = [line.strip() for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line and not _PROGRESS.match(line)), "")
    shown = _said(last)
    return printable(f"rank {failure['rank']}: {shown}" if failure and shown else shown)


def _said(line: str) -> str:
    """What a line of a log says. Ours may be JSON, whose message counts."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    said = found.get("message") if isinstance(found, dict) and "level" in found else None
    return said if isinstance(said, str) else line


def _rank_failure(pod: Pod) -> dict[str, object] | None:
    """What the agent wrote of the rank that failed first; None when it wrote nothing."""
    try:
        found = json.loads(pod.exit_message)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(found, dict) and {"rank", "exitCode"} <= found.keys()
    return found if is_ours else None
