"""Jobs of other projects with each field that they have, and what becomes of their values."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import yaml

from regroup.cli.manifest import Document
from regroup.cli.validation import validate
from regroup.converting.conversion import Conversion, convert_documents
from regroup.converting.draft import ConvertOptions
from regroup.converting.job_yaml import job_yaml
from regroup.converting.source import Place, leaves
from tests.support.kube_api import Json

_MARK = re.compile(r"mark\d+")
_FIRST_NUMBER = 30_000
_POD = """\
metadata:
  labels: {team: "@text"}
  annotations: {note: "@text"}
  creationTimestamp: 2026-01-01
spec:
  restartPolicy: Always
  nodeName: "@text"
  hostname: "@text"
  subdomain: "@text"
  automountServiceAccountToken: false
  serviceAccountName: "@text"
  nodeSelector: {disk: "@text"}
  volumes: [{name: data, persistentVolumeClaim: {claimName: "@text"}}]
  initContainers: [{name: fetch, image: "@text", command: ["@text"]}]
  containers:
    - name: %s
      image: "@text"
      command: [torchrun, --nproc-per-node=4, --rdzv-id=@text, --tee, "3", train.py]
      args: [--data, "@text"]
      terminationMessagePath: "@text"
      env:
        - {name: NCCL_DEBUG, value: "@text"}
        - {name: MASTER_ADDR, value: "@text"}
        - {name: PET_NNODES, value: "2"}
      ports:
        - {name: pytorchjob-port, containerPort: 23456}
        - {name: other, containerPort: 32343}
      resources:
        limits: {nvidia.com/gpu: 4, memory: 16Gi}
        requests: {cpu: 500m}
      volumeMounts: [{name: data, mountPath: "/@text"}]
    - {name: sidecar, image: "@text", env: [{name: RANK, value: "@text"}]}
"""
_METADATA = """\
  name: full
  namespace: "@text"
  labels: {team: "@text", kueue.x-k8s.io/queue-name: "@text"}
  annotations: {note: "@text", kubectl.kubernetes.io/last-applied-configuration: "@text"}
  uid: "@text"
  creationTimestamp: 2026-01-01T00:00:00Z
  managedFields: [{manager: "@text"}]
"""


def _pod(container: str, indent: int) -> str:
    lines = (_POD % container).splitlines()
    return "\n".join(" " * indent + line for line in lines)


PYTORCH_JOB = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
{_METADATA}
spec:
  runPolicy:
    cleanPodPolicy: All
    ttlSecondsAfterFinished: 32343
    activeDeadlineSeconds: 32343
    backoffLimit: 5
    suspend: true
    managedBy: kubeflow.org/training-operator
    schedulingPolicy:
      minAvailable: 32343
      queue: "@text"
      minResources: {{cpu: "@text"}}
      priorityClass: "@text"
      scheduleTimeoutSeconds: 32343
  elasticPolicy:
    minReplicas: 1
    maxReplicas: 4
    rdzvBackend: c10d
    rdzvPort: 32343
    rdzvHost: "@text"
    rdzvId: "@text"
    rdzvConf: [{{key: "@text", value: "@text"}}]
    standalone: false
    nProcPerNode: 4
    maxRestarts: 32343
    metrics: [{{type: "@text"}}]
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: ExitCode
      template:
{_pod("pytorch", 8)}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
{_pod("pytorch", 8)}
status:
  startTime: 2026-01-01T00:00:00Z
  replicaStatuses: {{Worker: {{active: 32343}}}}
"""
TRAIN_JOB = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
{_METADATA}
spec:
  runtimeRef: {{apiGroup: trainer.kubeflow.org, kind: TrainingRuntime, name: torch}}
  initializer: {{dataset: {{storageUri: "@text", secretRef: {{name: "@text"}}}}}}
  trainer:
    image: "@text"
    command: [torchrun, --rdzv-id=@text, train.py]
    args: [--data, "@text"]
    env: [{{name: NCCL_DEBUG, value: "@text"}}, {{name: MASTER_PORT, value: "@text"}}]
    numNodes: 3
    numProcPerNode: 4
    resourcesPerNode: {{limits: {{nvidia.com/gpu: 4}}}}
  runtimePatches:
    - manager: "@text"
      time: 2026-01-01T00:00:00Z
      trainingRuntimeSpec:
        template:
          metadata: {{labels: {{a: "@text"}}}}
          spec:
            replicatedJobs:
              - name: loader
                template: {{metadata: {{labels: {{a: "@text"}}}}}}
              - name: node
                template:
                  metadata: {{labels: {{a: "@text"}}}}
                  spec:
                    template:
                      metadata: {{labels: {{patched: "@text"}}}}
                      spec:
                        serviceAccountName: "@text"
                        tolerations: [{{key: "@text", operator: Exists}}]
                        containers: [{{name: node, volumeMounts: [{{name: data, mountPath: /x}}]}}]
  suspend: true
  activeDeadlineSeconds: 32343
  managedBy: "@text"
status: {{conditions: [{{type: "@text"}}]}}
"""
RUNTIME = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {{name: torch, labels: {{a: "@text"}}}}
spec:
  mlPolicy: {{numNodes: 1, torch: {{envInjection: {{targets: [{{jobName: "@text"}}]}}}}}}
  podGroupPolicy: {{volcano: {{networkTopology: {{mode: "@text"}}}}}}
  template:
    metadata: {{labels: {{a: "@text"}}}}
    spec:
      volumeClaimPolicies: [{{templates: [{{metadata: {{name: "@text"}}}}]}}]
      replicatedJobs:
        - name: loader
          template: {{spec: {{template: {{spec: {{containers: [{{name: a, image: "@text"}}]}}}}}}}}
        - name: node
          replicas: 32343
          dependsOn: [{{name: loader, status: Complete}}]
          template:
            metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}}
            spec:
              backoffLimit: 32343
              template:
{_pod("node", 16)}
"""
RAY_JOB = f"""\
apiVersion: ray.io/v1
kind: RayJob
metadata:
{_METADATA}
spec:
  entrypoint: python /app/train.py --data @text
  runtimeEnvYAML: |
    pip: ["@text"]
    working_dir: "@text"
    env_vars: {{NUM_WORKERS: "@text", MASTER_ADDR: "@text"}}
  shutdownAfterJobFinishes: true
  ttlSecondsAfterFinished: 32343
  activeDeadlineSeconds: 32343
  backoffLimit: 32343
  suspend: true
  managedBy: "@text"
  submissionMode: "@text"
  jobId: "@text"
  metadata: {{a: "@text"}}
  submitterPodTemplate: {{spec: {{containers: [{{name: "@text"}}]}}}}
  entrypointNumCpus: 32343
  rayClusterSpec:
    rayVersion: "@text"
    enableInTreeAutoscaling: true
    autoscalerOptions: {{idleTimeoutSeconds: 32343}}
    headGroupSpec:
      rayStartParams: {{dashboard-host: "@text"}}
      template: {{spec: {{containers: [{{name: ray-head, image: "@text"}}]}}}}
    workerGroupSpecs:
      - groupName: "@text"
        replicas: 2
        minReplicas: 1
        maxReplicas: 5
        numOfHosts: 1
        rayStartParams: {{num-cpus: "@text"}}
        template:
{_pod("ray-worker", 10)}
status: {{jobStatus: "@text"}}
"""


def marked(document: str) -> Json:
    """A document in which each `@text` is another text, and each 32343 another number."""
    count = itertools.count(1)
    text = re.sub("@text", lambda _: f"mark{next(count)}", document)
    text = re.sub("32343", lambda _: str(_FIRST_NUMBER + next(count)), text)
    value: Json = yaml.safe_load(text)
    return value


def convert_one(*documents: Json, options: ConvertOptions | None = None) -> Conversion:
    """What became of the first document, with the others beside it."""
    return convert_documents(documents, options or ConvertOptions())[0]


def problems(conversion: Conversion) -> list[str]:
    """What `regroup validate` says of the job."""
    document = Document(Path("job.yaml"), copy.deepcopy(dict(conversion.job or {})))
    return [f"{problem.field}: {problem.message}" for problem in validate(document)]


def lost(source: Json, conversion: Conversion, document: int = 0) -> list[Place]:
    """Places of marks (`marked`) that are neither in the job nor reported. The conversion's own
    bookkeeping is not asked.
    """
    written = job_yaml(conversion.job or {}, [note.text for note in conversion.left_out])
    return [
        place
        for place, value in leaves(source)
        if not all(mark in written for mark in marks(value))
        and not _is_summed(place)
        and not is_reported(place, conversion, document)
    ]


def _is_summed(place: Place) -> bool:
    """Whether a value is in the job as a part of a sum."""
    return place[1:2] == ("pytorchReplicaSpecs",) and place[-1] == "replicas"


def marks(value: Any) -> list[str]:
    """The marks in a value."""
    is_number = isinstance(value, int) and value > _FIRST_NUMBER
    return [str(value)] if is_number else _MARK.findall(value) if isinstance(value, str) else []


def is_reported(place: Place, conversion: Conversion, document: int = 0) -> bool:
    """Whether a note is about a value, or about all that it lies in."""
    places = {
        note.place
        for note in conversion.left_out
        if note.document == document and not note.is_remark
    }
    return any(place[:length] in places for length in range(1, len(place) + 1))
