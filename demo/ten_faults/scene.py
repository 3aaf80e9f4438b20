"""A devcluster with Regroup, a real Prometheus and a real Alertmanager, and a user at a shell."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from demo import installation
from demo.alertmanager import Alertmanager, running_alertmanager
from demo.errors import StoryError
from demo.job import Job
from demo.prometheus import Prometheus, monitored_by
from demo.promql import Server
from demo.screen import Screen
from demo.shell import type_line
from demo.short_rules import shortened_groups
from demo.stages.devcluster import DevclusterStage
from demo.stages.stage import CLAIM, shared_claim
from demo.targets import Discovery
from devcluster.processes import read_proc

FACTOR = 60
"""An hour of the rules is a minute here."""
NAMESPACE = "team"
VOLUME = "small"
VOLUME_SIZE = "256Mi"
SECONDS = 150
"""For a command that a user types."""
Json = dict[str, Any]


def nothing() -> None:
    """What is to be done about a fault that is over at once."""


@dataclass(frozen=True)
class Struck:
    """A fault that struck."""

    act: Callable[[], object] = nothing
    """What somebody does about it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What is known of it only now, such as `node`."""
    at: float | None = None
    """When it struck (monotonic); None: when the strike began."""


@dataclass(frozen=True)
class Scene:
    """What the faults meet."""

    stage: DevclusterStage
    server: Server
    manager: Alertmanager
    screen: Screen

    def type_in(self, line: str) -> tuple[int, str]:
        """Type a line in a shell whose namespace is that of the jobs: exit code and output."""
        programs = (Path(sys.executable).parent, self.stage.cluster.bin)
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        environment = {**self.stage.kubectl.environment(), "PATH": path, "COLUMNS": "80"}
        code, output = type_line(line, environment, SECONDS)
        return code, output.rstrip()

    def must(self, line: str) -> None:
        """Type a line that has to succeed. Raises StoryError."""
        code, output = self.type_in(line)
        if code:
            raise StoryError(f"`{line}` ended with {code}: {output[-500:]}")

    def patch(self, kind: str, name: str, body: Json) -> None:
        """Change an object, as `kubectl patch` does."""
        text = shlex.quote(yaml.safe_dump(body))
        self.must(f"kubectl patch {kind} {name} --type=merge -p {text}")

    def alerts(self, job: str) -> dict[str, str]:
        """The alerts about a job, `firing` as soon as Alertmanager has them, else `pending`."""
        query = f'ALERTS{{namespace="{NAMESPACE}", trainingjob="{job}"}}'
        known = {labels["alertname"] for labels, _ in self.server.instant(query, time.time())}
        received = {
            one["labels"]["alertname"]
            for one in self.manager.alerts()
            if one["labels"].get("trainingjob") == job
        }
        return dict.fromkeys(known, "pending") | dict.fromkeys(received, "firing")

    def active(self) -> set[str]:
        """The names of all alerts that are pending or firing, whatever they are about."""
        known = {labels["alertname"] for labels, _ in self.server.instant("ALERTS", time.time())}
        return known | {one["labels"]["alertname"] for one in self.manager.alerts()}

    def status(self, job: str) -> Json:
        """The status of a job; empty before it is there."""
        where = f"/apis/regroup.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
        for one in self.stage.cluster.plane.endpoint.api.request("GET", where)["items"]:
            if one["metadata"]["name"] == job:
                return dict(one.get("status", {}))
        return {}

    def rank_process(self, job: Job, rank: int) -> int:
        """The process on this machine that is a rank of the job. Raises StoryError."""
        for pod in job.pods("worker"):
            node = self.stage.cluster.node(pod["spec"]["nodeName"]).node
            for pid in node.pod_processes(pod["metadata"]["uid"]):
                if read_proc(pid, "comm").strip() == f"rank-{rank}":
                    return int(pid)
        raise StoryError(f"rank {rank} of {job.name} has no process")

    def volume_folder(self) -> Path:
        """Where this machine has the volume of the claim `shared`."""
        return self.stage.volume(NAMESPACE)


def values() -> Json:
    """The values of the chart that the page about monitoring shows."""
    found: Json = yaml.safe_load(installation.monitoring_values())
    return found


def install(stage: DevclusterStage, screen: Screen, folder: Path) -> None:
    """Install the chart as the page says, and make the namespace with its claim."""
    built = installation.build_images(screen)
    with screen.step("Installing the definitions of the Prometheus operator"):
        installation.define_monitors(stage.kubectl)
    installation.install(stage, built, screen)
    file = folder / "monitoring.yaml"
    file.write_text(installation.monitoring_values())
    where = ("-n", installation.SYSTEM, "--reset-then-reuse-values", "-f", str(file))
    chart = str(installation.ROOT / "charts/regroup")
    with screen.step("Switching monitors, rules and dashboards on"):
        stage.kubectl.helm("upgrade", installation.RELEASE, chart, *where, "--wait")
    stage.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    stage.cluster.add_volume(VOLUME, VOLUME_SIZE)
    stage.kubectl.apply(claim(), namespace=NAMESPACE)
    stage.kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}")


@contextmanager
def prepared(
    cluster: str, screen: Screen, folder: Path, *, keep: bool, installed: bool
) -> Iterator[DevclusterStage]:
    """Inside, there is this cluster with the chart. `keep`: it stays afterwards; `installed`: the
    chart is there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stage = DevclusterStage.up(screen, cluster)
    try:
        if not installed:
            install(stage, screen, folder)
        yield stage
    finally:
        if not keep:
            stage.cluster.down()


def claim() -> Json:
    """The claim `shared`, for the volume that can be full."""
    size = {"requests": {"storage": VOLUME_SIZE}}
    made = shared_claim(storageClassName=VOLUME, resources=size)
    assert made["metadata"]["name"] == CLAIM
    return made


@contextmanager
def monitored(stage: DevclusterStage, folder: Path) -> Iterator[tuple[Server, Alertmanager]]:
    """A Prometheus with the installed monitors and rules, and the Alertmanager that it sends to."""
    rules = stage.kubectl.read("prometheusrules", "-n", installation.SYSTEM)["items"]
    groups = [group for rule in rules for group in rule["spec"]["groups"]]
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(shortened_groups(groups, FACTOR)))
    monitors = stage.kubectl.read("servicemonitors,podmonitors", "-n", installation.SYSTEM)
    config = monitored_by(monitors["items"], folder)
    config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = [str(file)]
    with (
        stage.route() as route,
        Discovery(stage.kubectl, folder, route),
        running_alertmanager(folder / "alertmanager") as manager,
    ):
        receivers = [{"static_configs": [{"targets": [manager.address]}]}]
        config["alerting"] = {"alertmanagers": receivers}
        monitor = Prometheus.start(folder / "prometheus", config)
        try:
            yield monitor.server, manager
        finally:
            monitor.stop()
