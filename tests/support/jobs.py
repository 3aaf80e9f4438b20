"""TrainingJobs for tests: a builder with valid defaults, and a handle on one that runs in a
cluster.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from demo.kubectl import CommandError
from tests.support.waiting import wait_until

T = TypeVar("T")
Json = dict[str, Any]


def make_job(name: str = "gpt", *, steps: int = 400, replicas: int = 3, **spec: Any) -> Json:
    """A TrainingJob with a small model on the claim `shared`, one worker a node; `spec` overrides
    its fields.
    """
    fields: Json = {
        "replicas": replicas,
        "elasticPolicy": {"minReplicas": max(1, replicas - 1), "maxReplicas": replicas + 1},
        "checkpoint": {
            "intervalSteps": 50,
            "storage": {"persistentVolumeClaim": {"claimName": "shared"}},
        },
        "trainer": {
            "model": {"name": "gpt", "preset": "tiny"},
            "training": {
                "steps": steps,
                "globalBatchSize": 6,
                "microBatchSize": 2,
                "sequenceLength": 64,
            },
        },
        "template": {"spec": {"affinity": one_worker_a_node(name)}},
    }
    return {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {**fields, **spec},
    }


def one_worker_a_node(job: str) -> Json:
    """Required anti-affinity between the workers of a job."""
    term = {
        "labelSelector": {"matchLabels": {"regroup.dev/job": job, "regroup.dev/role": "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@dataclass(frozen=True)
class Job:
    """A TrainingJob in a namespace, through kubectl."""

    kubectl: Callable[..., str]
    namespace: str
    name: str

    @classmethod
    def apply(cls, kubectl: Callable[..., str], namespace: str, manifest: Mapping[str, Any]) -> Job:
        """Apply the manifest, as a user would."""
        kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
        return cls(kubectl, namespace, manifest["metadata"]["name"])

    def read(self) -> Json:
        """The object now."""
        found: Json = json.loads(
            self.kubectl("get", "trainingjob", self.name, "-n", self.namespace, "-o", "json")
        )
        return found

    def status(self) -> Json:
        """Its status; empty before the operator has seen it."""
        return dict(self.read().get("status", {}))

    def patch(self, **spec: Any) -> None:
        """Merge fields into the spec. Raises CommandError with the API server's message when it
        refuses.
        """
        body = json.dumps({"spec": spec})
        self.kubectl(
            "patch", "trainingjob", self.name, "-n", self.namespace, "--type=merge", "-p", body
        )

    def suspend(self) -> None:
        """Have it save and give its pods back; returns when it has."""
        self.patch(suspend=True)
        self.wait_for_condition("Suspended", seconds=90)

    def delete(self) -> None:
        """Delete it and wait until its pods are gone."""
        self._delete_object()
        try:
            wait_until(f"the pods of {self.name} to go", lambda: not self.pods(), seconds=90)
        except AssertionError:
            left = self.kubectl("get", "pods", "-n", self.namespace, "-o", "yaml")
            raise AssertionError(f"these pods outlive their job {self.name}:\n{left}") from None

    def discard(self) -> None:
        """Delete it and have its processes killed, without waiting for what they would save or
        pull.
        """
        self._delete_object()
        ours = ("-l", f"regroup.dev/job={self.name}")
        self.kubectl(
            "delete", "pods", "-n", self.namespace, *ours, "--grace-period=1", "--wait=false"
        )
        wait_until(
            f"the processes of {self.name} to go",
            lambda: not any(map(_runs, self.pods())),
            seconds=180,
        )

    def _delete_object(self) -> None:
        self.kubectl(
            "delete",
            "trainingjob",
            self.name,
            "-n",
            self.namespace,
            "--ignore-not-found",
            "--wait=true",
        )

    def pods(self, role: str | None = None) -> list[Json]:
        """Its pods, those on their way out included."""
        selector = f"regroup.dev/job={self.name}" + (f",regroup.dev/role={role}" if role else "")
        listing = self.kubectl("get", "pods", "-n", self.namespace, "-l", selector, "-o", "json")
        return list(json.loads(listing)["items"])

    def workers(self) -> list[Json]:
        """Worker pods that are not being deleted."""
        return [pod for pod in self.pods("worker") if "deletionTimestamp" not in pod["metadata"]]

    def coordinator(self) -> Json:
        """The coordinator pod in office, as soon as there is one."""

        def in_office() -> Json | None:
            pods = (
                pod
                for pod in self.pods("coordinator")
                if "deletionTimestamp" not in pod["metadata"]
            )
            return next(pods, None)

        return wait_until(f"a coordinator of {self.name}", in_office)

    def events(self) -> list[Json]:
        """Events about the job."""
        about = f"involvedObject.kind=TrainingJob,involvedObject.name={self.name}"
        listing = self.kubectl(
            "get", "events", "-n", self.namespace, "--field-selector", about, "-o", "json"
        )
        return list(json.loads(listing)["items"])

    def step(self) -> int:
        """Steps committed, by the status."""
        return int(self.status().get("progress", {}).get("step", 0))

    def recoveries(self) -> list[Json]:
        """How it went on from one generation to the next, oldest first; only those after which a
        step was committed, since what they cost is known only then.
        """
        recoveries = self.status().get("recoveries", [])
        return [recovery for recovery in recoveries if recovery.get("downSeconds") is not None]

    def losses(self) -> list[Json]:
        """Its recoveries from losses: a worker that comes after the start's grace joins by one
        too, as a resize.
        """
        return [recovery for recovery in self.recoveries() if recovery["cause"] != "resize"]

    def condition(self, kind: str) -> Json:
        """A condition; empty while there is none."""
        return next((c for c in self.status().get("conditions", ()) if c["type"] == kind), {})

    def wait_for_condition(self, kind: str, status: str = "True", seconds: float = 120) -> Json:
        """Wait until a condition has that status, and return it; a failed job ends the wait at
        once.
        """

        def there() -> Json | None:
            now = self.status()
            conditions: dict[str, Json] = {
                condition["type"]: condition for condition in now.get("conditions", ())
            }
            if kind != "Failed" and conditions.get("Failed", {}).get("status") == "True":
                raise AssertionError(f"{self.name} failed: {now.get('message')}")
            found = conditions.get(kind, {})
            return found if found.get("status") == status else None

        return self._wait(f"{self.name}: {kind}={status}", there, seconds)

    def wait_for_checkpoint(self, step: int = 1, seconds: float = 120) -> int:
        """Wait until a checkpoint of at least `step` is published; returns its step."""

        def there() -> int | None:
            last = self.status().get("checkpoint", {}).get("lastStep") or 0
            return last if last >= step else None

        return self._wait(f"{self.name} to save step {step} or later", there, seconds)

    def wait_until_whole_and_saved(self) -> int:
        """Wait until all workers train, so that no worker joins later, and a checkpoint is
        published; returns its step.
        """
        self.wait_for_ranks(self.read()["spec"]["replicas"])
        return self.wait_for_checkpoint()

    def wait_for_ranks(self, size: int, seconds: float = 90) -> Json:
        """Wait until it trains with `size` ranks."""

        def there() -> Json | None:
            status = self.status()
            return (
                status
                if status.get("worldSize") == size and status.get("phase") == "Running"
                else None
            )

        return self._wait(f"{self.name} to train with {size} ranks", there, seconds)

    def _wait(self, what: str, condition: Callable[[], T | None], seconds: float) -> T:
        try:
            return wait_until(what, condition, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._described()}") from None

    def _described(self) -> str:
        """The job's message, its pods, the ends of their logs, and the events of the
        namespace.
        """
        ours = ("-n", self.namespace, "-l", f"regroup.dev/job={self.name}")
        parts = [
            f"message: {self.status().get('message')}",
            self.kubectl("get", "pods", "-o", "wide", *ours),
        ]
        for pod in self.pods():
            name = pod["metadata"]["name"]
            with contextlib.suppress(CommandError):  # it may not have begun
                parts.append(
                    f"--- {name}\n{self.kubectl('logs', '--tail=200', name, '-n', self.namespace)}"
                )
        parts.append(
            self.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
        )
        return "\n".join(parts)


def _runs(pod: Json) -> bool:
    return any(
        "running" in container["state"] for container in pod["status"].get("containerStatuses", ())
    )


def refusal(action: Callable[[], object]) -> str:
    """The message with which the API server refuses `action`. Fails when it accepts it."""
    try:
        action()
    except CommandError as error:
        return str(error)
    raise AssertionError("the API server accepted it")
