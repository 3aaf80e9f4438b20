"""The smallest jobs of other projects that the pages convert."""

from __future__ import annotations

IMAGE_NET = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: elastic-example-imagenet
spec:
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: 1
    maxReplicas: 2
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec: {containers: [{name: pytorch, image: "train:1", command: [torchrun, train.py]}]}
"""
PYTORCH_JOB = IMAGE_NET.replace("elastic-example-imagenet", "mnist")
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: bert}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {command: [torchrun, train.py]}
"""
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 2, torch: {}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec: {template: {spec: {containers: [{name: node, image: "train:1"}]}}}
"""
