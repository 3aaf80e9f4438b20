"""The cases of bench/recovery.py: what is done to a training."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from bench import stuck
from bench.nodes import send
from bench.outcome import Fault
from bench.recovery_settings import LEAST_WORKERS, WORKERS
from bench.recovery_subject import Subject

Strike = Callable[[Subject, int, int], None]
"""Subject, node and process id of rank 0."""


def lose_node(subject: Subject, node: int, _pid: int) -> None:
    """The node loses power."""
    subject.nodes.cut(node)
    subject.nodes.kill(node)
    subject.lose(node)


def freeze_node(subject: Subject, node: int, _pid: int) -> None:
    """All processes of the node are stopped."""
    subject.nodes.freeze(node)
    subject.lose(node)


def cut_node(subject: Subject, node: int, _pid: int) -> None:
    """The node loses its network."""
    subject.nodes.cut(node)
    subject.lose(node)


def cut_input(subject: Subject, node: int, _pid: int) -> None:
    """The node sends but receives nothing."""
    subject.nodes.cut_input(node)
    subject.lose(node)


CASES: dict[str, Strike] = {
    "rank-kill": lambda _subject, _node, pid: send(pid, signal.SIGKILL),
    "pod-kill": lambda subject, node, _pid: subject.nodes.kill(node),
    "rank0-node-loss": lose_node,
    "node-frozen": freeze_node,
    "network-cut": cut_node,
    "one-way-cut": cut_input,
    "hang": lambda _subject, _node, pid: send(pid, stuck.SIGNAL),
    "coordinator-kill": lambda subject, _node, _pid: subject.kill_control(),
    "join": lambda subject, _node, _pid: subject.scale(WORKERS),
    "shrink": lambda subject, _node, _pid: subject.scale(LEAST_WORKERS),
    "sigterm": lambda subject, node, _pid: subject.terminate(node),
}
PLANNED = ("join", "shrink", "sigterm")
RANK_ONLY = ("rank-kill", "hang")
"""Cases that leave rank 0's agent alone."""
LIVES_ON = ("coordinator-kill",)
"""Cases in which the generation may continue."""


def strike(training: Subject, case: str) -> Fault:
    """Inject the fault of a case at rank 0. Raises NotTrainingError."""
    node, pid = training.node_of(0)
    training.watch(struck_node(training, case, node), pid)
    fault = Fault(time.time(), case in PLANNED)
    CASES[case](training, node, pid)
    return fault


def struck_node(training: Subject, case: str, node: int) -> int | None:
    """The node that a fault hits as a whole, or None; `node` has rank 0."""
    if case in RANK_ONLY:
        return None
    return training.control_node if case == "coordinator-kill" else node
