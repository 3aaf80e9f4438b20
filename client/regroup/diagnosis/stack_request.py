"""Asks the workers of a job what their ranks do: a command of the trainer in each pod, at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import ValidationError

from regroup.diagnosis.rank_stacks import WorkerAnswer
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_channels import CommandOutput, CommandRunner
from regroup.kubernetes.pod_record import PodRecord
from regroup_operator.api.names import WORKER
from regroup_trainer.protocol.agent_messages import WorkerStacks

AT_ONCE = 128
"""Pods that are asked at the same time."""
SECONDS = 8.0
"""What one pod may take. Ranks answer within a second."""
_MODULE = "regroup_trainer.agent.stacks"
_FORBIDDEN = 403


def ask_workers(
    api: CommandRunner, namespace: str, pods: Sequence[PodRecord]
) -> list[WorkerAnswer]:
    """What each worker shows, in their order. Raises ClusterError without the right to ask."""
    workers = [pod for pod in pods if pod.role == WORKER]
    if not workers:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(workers))) as threads:
        return list(threads.map(lambda pod: _ask(api, namespace, pod), workers))


def _ask(api: CommandRunner, namespace: str, pod: PodRecord) -> WorkerAnswer:
    if pod.phase != "Running":
        return WorkerAnswer(pod.name, missing=f"is {pod.phase}")
    try:
        output = api.run_in_pod(namespace, pod, [*pod.command[:-1], _MODULE], SECONDS)
    except ClusterError as error:
        if error.status == _FORBIDDEN:
            raise
        return WorkerAnswer(pod.name, missing=f"does not answer: {error}")
    return _read(pod.name, output)


def _read(pod: str, output: CommandOutput) -> WorkerAnswer:
    if output.exit_code:
        reason = " ".join(output.stderr.split()) or f"exit code {output.exit_code}"
        return WorkerAnswer(pod, missing=f"does not answer: {reason}")
    if not output.stdout.strip():
        return WorkerAnswer(pod, missing="runs a release that cannot show stacks")
    try:
        return WorkerAnswer(pod, WorkerStacks.model_validate_json(output.stdout).ranks)
    except ValidationError:
        return WorkerAnswer(pod, missing="runs another release, whose answer cannot be read")
