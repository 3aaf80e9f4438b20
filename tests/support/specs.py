"""Specs of TrainingJobs as a user writes them, and changes of them."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from tests.support.kube_api import ROOT, Json

SAMPLE_JOBS = tuple(
    file
    for file in sorted((ROOT / "manifests/samples").glob("*.yaml"))
    if yaml.safe_load(file.read_text())["kind"] == "TrainingJob"
)
SMALLEST: Json = yaml.safe_load((ROOT / "manifests/samples/smallest.yaml").read_text())["spec"]
VALID_JOB = """\
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {name: gpt}
spec:
  replicas: 3
  elasticPolicy: {minReplicas: 2, maxReplicas: 4}
  checkpoint: {storage: {persistentVolumeClaim: {claimName: shared}}}
  trainer:
    model: {name: gpt, preset: 1m}
    parallelism: {strategy: fsdp}
    training: {steps: 500}
"""
"""A file that `regroup validate` accepts."""


def put(spec: Json, path: str, value: Any) -> Json:
    """A copy of `spec` with the field at `path`; None takes it away."""
    changed = copy.deepcopy(spec)
    *parents, last = path.split(".")
    section = changed
    for parent in parents:
        section = section.setdefault(parent, {})
    if value is None:
        section.pop(last, None)
    else:
        section[last] = value
    return changed
