"""A TrainingJob of the demo. It is applied, watched and queried through kubectl, as by a user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo.errors import StoryError
from demo.kubectl import Kubectl
from demo.stages.stage import Stage
from demo.volume import Volume
from demo.waiting import wait_for

SAMPLE = Path(__file__).resolve().parent.parent / "manifests/samples/gpt-demo.yaml"
Json = dict[str, Any]


def manifest(name: str | None = None) -> Json:
    """The sample's job. With `name`, every use of its name is replaced."""
    text = SAMPLE.read_text()
    job: Json = yaml.safe_load(text)
    own = job["metadata"]["name"]
    renamed: Json = yaml.safe_load(text.replace(own, name)) if name else job
    return renamed


@dataclass(frozen=True)
class Job:
    """A TrainingJob on a stage."""

    stage: Stage
    namespace: str
    name: str
    uid: str
    total_steps: int

    @classmethod
    def apply(cls, stage: Stage, namespace: str, described: Json) -> Job:
        """Apply the job. Raises CommandError with the API server's message when it refuses."""
        stage.kubectl.apply(described, namespace=namespace)
        name = described["metadata"]["name"]
        found = stage.kubectl.read("trainingjob", name, "-n", namespace)
        steps = described["spec"]["trainer"]["training"]["steps"]
        return cls(stage, namespace, name, found["metadata"]["uid"], steps)

    @property
    def kubectl(self) -> Kubectl:
        return self.stage.kubectl

    def status(self) -> Json:
        """The job's status. Empty before the operator has written it."""
        found: Json = self.kubectl.read("trainingjob", self.name, "-n", self.namespace).get(
            "status", {}
        )
        return found

    def volume(self) -> Volume:
        """The job's directory on the volume."""
        return Volume(
            self.stage.volume(self.namespace) / self.namespace / f"{self.name}-{self.uid[:8]}"
        )

    def condition(self, kind: str) -> str:
        """The status of a condition. Empty while the condition is missing.

        Raises StoryError when the job has failed.
        """
        conditions = {one["type"]: one for one in self.status().get("conditions", ())}
        if conditions.get("Failed", {}).get("status") == "True":
            raise StoryError(f"{self.name} failed: {conditions['Failed'].get('message')}")
        return str(conditions.get(kind, {}).get("status", ""))

    def describe(self) -> str:
        """The job's phase and message as one sentence."""
        status = self.status()
        return f"{self.name} is {status.get('phase')}: {status.get('message')}"

    def pods(self, role: str) -> list[Json]:
        """The job's pods of a role that are not being deleted."""
        selector = f"regroup.dev/job={self.name},regroup.dev/role={role}"
        found = self.kubectl.read("pods", "-n", self.namespace, "-l", selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def delete(self, seconds: float = 60) -> None:
        """Delete the job and wait until its pods are gone."""
        self.kubectl("delete", "trainingjob", self.name, "-n", self.namespace, "--ignore-not-found")
        wait_for(
            f"the end of the pods of {self.name}",
            lambda: not self.pods("worker"),
            seconds,
            every=0.5,
        )


def delete_all(kubectl: Kubectl, namespace: str) -> None:
    """Delete all jobs of an earlier demo in the namespace, with their pods."""
    kubectl("delete", "trainingjobs", "--all", "-n", namespace, "--ignore-not-found")
    kubectl(
        "wait", "pods", "-n", namespace, "-l", "regroup.dev/role", "--for=delete", "--timeout=90s"
    )
