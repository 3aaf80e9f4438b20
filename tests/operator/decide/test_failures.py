"""What the end of a worker means."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from regroup_operator.decide.failures import FailureAction, classify, describe
from regroup_operator.observe.observed import Pod
from regroup_trainer.agent.start import find_problem
from regroup_trainer.agent.termination import termination_message
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationNumber


def make_pod(exit_code: int | None = 1, **fields: object) -> Pod:
    fields["exit_code"] = exit_code
    return Pod("gpt-w0-1", "uid", "worker", 0, -1, "Failed", **fields)  # type: ignore[arg-type]


def of_torchrun(message: str) -> Pod:
    """A worker of the first attempt, whose agent wrote this last."""
    return replace(make_pod(1, exit_message=message), term=1)


REFUSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
LOST_PEER = (
    "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: "
    "/torch.rendezvous.gpt-1.1/torchelastic/assigned_ranks/1"
)
FAILED = RankExit(
    generation=GenerationNumber(1, 13),
    rank=1,
    exit_code=255,
    cause="error",
    message="Traceback\nValueError: no data",
)
OF_AGENT = termination_message(FAILED)
PROGRESS = "2026-01-01 10:00:00,123 INFO generation 1.13: ranks [1] of 3"
JSON_PROGRESS = '{"time": "2026-01-01T10:00:00.123+00:00", "level": "INFO", "message": "ranks"}'
"""The end of a worker's log, which the kubelet shows where the worker left no message."""


@pytest.mark.parametrize(
    ("pod", "rule", "action"),
    [
        (make_pod(1), "program failed", "Restart"),
        (make_pod(2), "wrong usage", "FailJob"),
        (make_pod(126), "not executable", "FailJob"),
        (make_pod(127), "not executable", "FailJob"),
        (make_pod(143), "asked to leave", "RestartIgnoreBudget"),
        (make_pod(130), "asked to leave", "RestartIgnoreBudget"),
        (make_pod(137), "killed", "RestartIgnoreBudget"),
        (make_pod(137, exit_reason="OOMKilled"), "out of memory", "Restart"),
        (make_pod(255, exit_reason="Unknown"), "node restart", "RestartIgnoreBudget"),
        (
            make_pod(255, exit_reason="ContainerStatusUnknown"),
            "node restart",
            "RestartIgnoreBudget",
        ),
        (make_pod(255, exit_reason="Error"), "program failed", "Restart"),
        (make_pod(255), "program failed", "Restart"),
        (make_pod(255, exit_reason="Unknown", exit_message=OF_AGENT), "program failed", "Restart"),
        (
            make_pod(255, exit_reason="Unknown", exit_message="rank 0 failed with code 1: no data"),
            "program failed",
            "Restart",
        ),
        (
            make_pod(255, exit_reason="Unknown", exit_message=PROGRESS),
            "node restart",
            "RestartIgnoreBudget",
        ),
        (make_pod(128, exit_reason="StartError"), "not started", "Restart"),
        (make_pod(2, ended_container="packages"), "init container", "Restart"),
        (make_pod(143, ended_container="packages"), "asked to leave", "RestartIgnoreBudget"),
        (
            make_pod(128, exit_reason="StartError", ended_container="packages"),
            "not started",
            "Restart",
        ),
        (make_pod(127, exit_reason="ContainerCannotRun"), "not started", "Restart"),
        (make_pod(126, exit_reason="ContainerCannotRun"), "not started", "Restart"),
        (make_pod(128, exit_reason="CreateContainerError"), "not started", "Restart"),
        (make_pod(127, exit_reason="Error"), "not executable", "FailJob"),
        (make_pod(128, exit_reason="Error"), "program failed", "Restart"),
        (make_pod(75), "lost a peer", "RestartIgnoreBudget"),
        (of_torchrun(REFUSED), "torchrun refused it", "RestartIgnoreBudget"),
        (of_torchrun(LOST_PEER), "torchrun lost a peer", "RestartIgnoreBudget"),
        (of_torchrun(f"rank 1 failed with exit code 1:\n{REFUSED}"), "program failed", "Restart"),
        (of_torchrun("DistStoreError: wait timeout after 1ms"), "program failed", "Restart"),
        (make_pod(1, exit_message=REFUSED), "program failed", "Restart"),
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


def test_a_python_that_has_no_packages_of_ours_ends_the_job_and_is_named() -> None:
    """What the agent's starter writes in an image of the user."""
    problem = find_problem("3.9", ["3.11", "3.12"])
    pod = make_pod(2, exit_message=f"regroup: {problem}\n")
    assert classify(pod).action == "FailJob"
    assert "the Python of this image is 3.9; launcher regroup runs" in describe(pod, classify(pod))


def test_an_init_container_that_failed_is_named_and_blames_no_node() -> None:
    pod = make_pod(1, node="n2", ended_container="packages", exit_message="ERROR: no einops\n")
    rule = classify(pod)
    assert (rule.cause, rule.blames_node) == ("application", False)
    assert describe(pod, rule) == (
        "worker pod gpt-w0-1 on node n2 ended with exit code 1 (init container packages): "
        "ERROR: no einops"
    )
    silent = make_pod(1, ended_container="packages")
    assert describe(silent, classify(silent)).endswith("(see kubectl logs gpt-w0-1 -c packages)")


def test_a_killed_pod_is_described_by_its_signal_and_not_by_what_it_wrote_last() -> None:
    pod = make_pod(137, node="n2", exit_message="the store listens on port 29400")
    assert describe(pod, classify(pod)) == (
        "worker pod gpt-w0-1 on node n2 ended with exit code 137 (killed): SIGKILL from outside: "
        "out of memory? (see kubectl describe pod gpt-w0-1)"
    )
    pod = make_pod(137, exit_reason="OOMKilled", exit_message="step 45")
    assert describe(pod, classify(pod)).endswith(
        "(out of memory): it reached its memory limit (raise limits.memory of spec.resources or "
        "spec.template, or use less)"
    )


def test_a_restart_of_its_node_is_named_with_the_node_and_not_with_a_line_of_the_log() -> None:
    pod = make_pod(255, node="n2", exit_reason="Unknown", exit_message=PROGRESS)
    assert describe(pod, classify(pod)) == (
        "worker pod gpt-w0-1 on node n2 ended with exit code 255 (node restart): its node or "
        "container runtime stopped before it could report why"
    )


NO_COMMAND = (
    "failed to create containerd task: runc create failed: unable to start container process: "
    'exec: "trian": executable file not found in $PATH: unknown'
)
"""What containerd says of a wrong command."""


def test_what_the_runtime_says_of_a_container_that_never_ran_is_named_with_what_to_do() -> None:
    pod = make_pod(128, node="n2", exit_reason="StartError", exit_message=NO_COMMAND)
    rule = classify(pod)
    assert (rule.cause, rule.blames_node) == ("infrastructure", True)
    assert describe(pod, rule) == (
        "worker pod gpt-w0-1 on node n2 ended with exit code 128 (not started): the container "
        f"runtime reports StartError: {NO_COMMAND} (check command, image and mounts of "
        "spec.template, and the node's runtime and devices)"
    )
    pod = make_pod(128, exit_reason="StartError")
    assert "the container runtime reports StartError (check " in describe(pod, classify(pod))


@pytest.mark.parametrize(
    "text", [PROGRESS, f"{PROGRESS}\nINFO generation 1.13: ranks [1] of 3\n", JSON_PROGRESS]
)
def test_a_line_of_progress_is_no_reason(text: str) -> None:
    pod = make_pod(1, exit_message=text)
    assert describe(pod, classify(pod)).endswith(
        "(program failed): it gave no reason (see kubectl logs gpt-w0-1)"
    )
    pod = make_pod(1, exit_message=f"ValueError: no data\n{text}")
    assert describe(pod, classify(pod)).endswith("(program failed): ValueError: no data")


def test_the_reason_in_a_log_of_json_is_its_message() -> None:
    line = {"time": "x", "level": "ERROR", "message": "the coordinator cannot start: no token"}
    pod = make_pod(1, exit_message=f"{json.dumps(line)}\n{JSON_PROGRESS}\n")
    assert describe(pod, classify(pod)).endswith("failed): the coordinator cannot start: no token")
    pod = make_pod(1, exit_message='{"level": "ERROR", "message": 7}')
    assert describe(pod, classify(pod)).endswith('failed): {"level": "ERROR", "message": 7}')


def test_the_message_of_an_agent_is_read_as_rank_and_last_line() -> None:
    pod = make_pod(1, exit_message=OF_AGENT)
    assert describe(pod, classify(pod)).endswith("(program failed): rank 1: ValueError: no data")


@pytest.mark.parametrize("written", ["a\ud800b", "a\x1b[2Jb", "a\tb"])
def test_last_words_are_shown_in_one_printable_line(written: str) -> None:
    of_agent = json.dumps({"rank": 1, "exitCode": 1, "message": written})
    of_forger = json.dumps({"rank": f"1\n{written}", "exitCode": 1})
    for text in (written, of_agent, of_forger):
        pod = make_pod(1, exit_message=text)
        shown = describe(pod, classify(pod))
        assert shown.isprintable()
        assert repr(written)[1:-1] in shown


@pytest.mark.parametrize("text", ["[" * 5000, '{"rank": 1}', "[1]", "nul"])
def test_any_last_message_of_a_program_is_read_without_an_error(text: str) -> None:
    pod = make_pod(255, exit_reason="Unknown", exit_message=text)
    assert classify(pod).name == "node restart"
