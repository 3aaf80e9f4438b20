"""A TrainingJob of the demo: applied, watched and asked as a user would, through kubectl."""

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
    """The job of the sample, or the same under another name, wherever its name is used."""
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
        """Apply it. Raises CommandError with the API server's words when it refuses."""
        stage.kubectl.apply(described, namespace=namespace)
        name = described["metadata"]["name"]
        found = stage.kubectl.read("trainingjob", name, "-n", namespace)
        steps = described["spec"]["trainer"]["training"]["steps"]
        return cls(stage, namespace, name, found["metadata"]["uid"], steps)

    @property
    def kubectl(self) -> Kubectl:
        """The cluster's kubectl."""
        return self.stage.kubectl

    def status(self) -> Json:
        """Its status; empty before the operator has seen it."""
        found: Json = self.kubectl.read("trainingjob", self.name, "-n", self.namespace).get("status", {})
        return found

    def volume(self) -> Volume:
        """Its directory."""
        return Volume(self.stage.volume(self.namespace) / self.namespace / f"{self.name}-{self.uid[:8]}")

    def condition(self, kind: str) -> str:
        """The status of a condition; empty while there is none. Raises StoryError once the job has failed."""
        conditions = {one["type"]: one for one in self.status().get("conditions", ())}
        if conditions.get("Failed", {}).get("status") == "True":
            raise StoryError(f"{self.name} failed: {conditions['Failed'].get('message')}")
        return str(conditions.get(kind, {}).get("status", ""))

    def says(self) -> str:
        """Its own word on what it does."""
        status = self.status()
        return f"{self.name} is {status.get('phase')}: {status.get('message')}"

    def pods(self, role: str) -> list[Json]:
        """Its pods of a role that are not on their way out."""
        selector = f"regroup.dev/job={self.name},regroup.dev/role={role}"
        found = self.kubectl.read("pods", "-n", self.namespace, "-l", selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def delete(self, seconds: float = 60) -> None:
        """Delete it and wait until its pods are gone."""
        self.kubectl("delete", "trainingjob", self.name, "-n", self.namespace, "--ignore-not-found")
        wait_for(f"the end of the pods of {self.name}", lambda: not self.pods("worker"), seconds, every=0.5)


def delete_all(kubectl: Kubectl, namespace: str) -> None:
    """Delete what an earlier demo left in the namespace, pods included."""
    kubectl("delete", "trainingjobs", "--all", "-n", namespace, "--ignore-not-found")
    kubectl("wait", "pods", "-n", namespace, "-l", "regroup.dev/role", "--for=delete", "--timeout=90s")
