"""What the end of a worker means."""

from __future__ import annotations

import pytest

from regroup_operator.decide.failures import FailureAction, classify, describe
from regroup_operator.observe.observed import Pod


def make_pod(exit_code: int | None = 1, **fields: object) -> Pod:
    fields["exit_code"] = exit_code
    return Pod("gpt-w0-1", "uid", "worker", 0, -1, "Failed", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pod", "rule", "action"),
    [
        (make_pod(1), "program failed", "Restart"),
        (make_pod(2), "wrong usage", "FailJob"),
        (make_pod(126), "not executable", "FailJob"),
        (make_pod(127), "not executable", "FailJob"),
        (make_pod(143), "asked to leave", "RestartIgnoreBudget"),
        (make_pod(137), "killed", "RestartIgnoreBudget"),
        (make_pod(137, exit_reason="OOMKilled"), "out of memory", "Restart"),
        (make_pod(75), "lost a peer", "RestartIgnoreBudget"),
        (make_pod(None), "container never ran", "RestartIgnoreBudget"),
        (
            make_pod(2, true_conditions=frozenset({"DisruptionTarget"})),
            "disruption",
            "RestartIgnoreBudget",
        ),
        (make_pod(1, reason="Evicted"), "eviction", "RestartIgnoreBudget"),
        (make_pod(None, reason="NodeLost"), "node loss", "RestartIgnoreBudget"),
    ],
)
def test_the_first_rule_that_matches_counts(pod: Pod, rule: str, action: FailureAction) -> None:
    found = classify(pod)
    assert (found.name, found.action) == (rule, action)


def test_an_end_is_described_by_its_code_and_the_last_line() -> None:
    pod = make_pod(1, exit_message="Traceback\n  File x\nValueError: no data")
    assert describe(pod, classify(pod)) == (
        "worker pod gpt-w0-1 ended with exit code 1 (program failed): ValueError: no data"
    )
