"""A real cluster: what its users rely on, and that its removal leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import archives, cgroups, mounts, network, packages, registry
from devcluster.cluster import Cluster
from devcluster.processes import Processes
from devcluster.progress import silent, to_stderr
from devcluster.removal import remove
from regroup_trainer.system.machine_address import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = "dc-test"
IMAGE = "localhost/busybox:1"
APPLETS = ("sh", "sleep", "nslookup", "wget", "httpd", "cat", "id", "touch", "dd", "ls")


def footprint(name: str) -> dict[str, list[str]]:
    """All that the kernel shows of a cluster."""
    state = Path.home() / ".cache" / "regroup" / "devcluster" / "clusters" / name
    record = registry.load(name)
    state = Path(record.state) if record else state
    routes = subprocess.run(
        ["ip", "route"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {
        "processes": [
            str(pid)
            for pid in {*cgroups.processes(f"regroup/{name}"), *Processes(state).marked_processes()}
        ],
        "mounts": [str(point) for point in mounts.below(state)],
        "namespaces": network.namespaces(name),
        "links": [
            link.name
            for link in Path("/sys/class/net").iterdir()
            if link.name == network.host_link(name)
        ],
        "routes": [route for route in routes if network.host_link(name) in route.split()],
        "control groups": [
            str(h) for h in cgroups.hierarchies() if (h / "regroup" / name).exists()
        ],
        "files": [
            *map(str, Path("/var/lib/cni/results").glob(f"regroup-{name}-*")),
            *map(str, Path("/run/regroup-devcluster").glob(f"{name}.json")),
            *([str(state)] if state.exists() else []),
        ],
    }


def nothing() -> dict[str, list[str]]:
    kinds = ("processes", "mounts", "namespaces", "links", "routes", "control groups", "files")
    return {kind: [] for kind in kinds}


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packages.ensure({"/bin/busybox": "busybox-static"}, silent)
    links = {f"bin/{applet}": "busybox" for applet in APPLETS}
    folder = tmp_path_factory.mktemp("busybox")
    return archives.pack(
        IMAGE, {"bin/busybox": Path("/bin/busybox")}, links, {"Entrypoint": ["/bin/sh"]}, folder
    )


@pytest.fixture(autouse=True)
def _whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Starts all nodes again after each test, however it ended."""
    yield
    if "cluster" in request.fixturenames:
        Cluster.up(NAME, 2)


@pytest.fixture(scope="module")
def cluster(busybox: Path) -> Iterator[Cluster]:
    made = Cluster.up(NAME, 2, to_stderr())
    made.load_image(busybox)
    yield made
    made.down()
    assert footprint(NAME) == nothing()


def make_pod(
    name: str, script: str, node: str | None = None, claim: str | None = None
) -> dict[str, Any]:
    """A restricted pod of user 1000 that runs a shell script, with a claim at /data."""
    mount = [{"name": "data", "mountPath": "/data"}] if claim else []
    volume = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            **({"nodeName": node} if node else {}),
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
            "containers": [
                {"name": "main", "image": IMAGE, "args": ["-c", script], "volumeMounts": mount}
            ],
            "volumes": volume,
        },
    }


def make_claim(name: str, **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"storage": "1Gi"}}
    fields = {"accessModes": ["ReadWriteMany"], "resources": resources, **spec}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": fields,
    }


def create(cluster: Cluster, *objects: dict[str, Any]) -> None:
    for each in objects:
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(each))


def field(cluster: Cluster, what: str, path: str) -> str:
    return cluster.kubectl("get", what, "-o", f"jsonpath={{{path}}}", "--ignore-not-found")


def wait_for_phase(cluster: Cluster, pod: str, phase: str) -> None:
    wait_until(f"{pod} {phase}", lambda: field(cluster, f"pod/{pod}", ".status.phase") == phase, 60)


def test_names_of_services_resolve_and_foreign_names_fail_at_once(cluster: Cluster) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    create(
        cluster,
        service,
        make_pod("web", "httpd -f -p 8080 -h /etc", "n1"),
        make_pod("client", "sleep 600", "n2"),
    )
    wait_for_phase(cluster, "web", "Running")
    wait_for_phase(cluster, "client", "Running")
    fetch = (
        "exec",
        "client",
        "--",
        "wget",
        "-q",
        "-O",
        "-",
        "http://web.default.svc.cluster.local/passwd",
    )
    wait_until(
        "the service",
        lambda: "nobody" in _output(cluster, *fetch) or "404" in _output(cluster, *fetch),
    )
    address = field(cluster, "pod/web", ".status.podIP")
    assert "web.default.svc" in cluster.kubectl("exec", "client", "--", "nslookup", address)
    answer = _output(cluster, "exec", "client", "--", "nslookup", "example.com")
    assert "NXDOMAIN" in answer, "without an answer it would time out"


def _output(cluster: Cluster, *arguments: str) -> str:
    """What kubectl prints, whatever its exit code."""
    command = [str(cluster.bin / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_logs_exec_and_port_forward_work_and_pods_are_reached_from_the_machine(
    cluster: Cluster,
) -> None:
    create(cluster, make_pod("talker", "echo hello; httpd -f -p 8080 -h /tmp", "n2"))
    wait_for_phase(cluster, "talker", "Running")
    wait_until("the log", lambda: cluster.kubectl("logs", "talker") == "hello\n")
    assert "uid=1000" in cluster.kubectl("exec", "talker", "--", "id")
    cluster.kubectl("exec", "talker", "--", "touch", "/tmp/here")
    address = field(cluster, "pod/talker", ".status.podIP")
    with urllib.request.urlopen(f"http://{address}:8080/here", timeout=5) as answer:
        assert answer.status == 200
    port = free_port()
    kubectl = [str(cluster.bin / "kubectl"), "--kubeconfig", str(cluster.kubeconfig)]
    forward = subprocess.Popen(
        [*kubectl, "port-forward", "talker", f"{port}:8080"], stdout=subprocess.DEVNULL
    )
    try:
        wait_until("the forwarded port", lambda: _answers(f"http://127.0.0.1:{port}/here"))
    finally:
        forward.kill()
        forward.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_pods_on_two_nodes_share_a_volume_as_a_user_without_rights(cluster: Cluster) -> None:
    create(cluster, make_claim("shared"), make_claim("second", storageClassName="shared"))
    script = "echo here > /data/{0}; sleep 600"
    create(
        cluster,
        *(make_pod(f"writer-{node}", script.format(node), node, "shared") for node in ("n1", "n2")),
    )
    for node in ("n1", "n2"):
        wait_for_phase(cluster, f"writer-{node}", "Running")
    listing = ("exec", "writer-n1", "--", "ls", "/data")
    wait_until("both files", lambda: cluster.kubectl(*listing).split() == ["n1", "n2"])
    assert field(cluster, "pvc/second", ".status.phase") == "Bound"
    volume = field(cluster, "pvc/second", ".spec.volumeName")
    cluster.kubectl("delete", "pvc", "second")
    wait_until(
        "the end of the volume", lambda: not field(cluster, f"pv/{volume}", ".metadata.name")
    )


def test_a_volume_with_a_size_fills_up(cluster: Cluster) -> None:
    cluster.add_volume("small", "4Mi")
    create(
        cluster,
        make_claim("small", storageClassName="small", resources={"requests": {"storage": "4Mi"}}),
    )
    filler = make_pod("filler", "dd if=/dev/zero of=/data/x bs=1M count=8", claim="small")
    filler["spec"]["restartPolicy"] = "Never"
    create(cluster, filler)
    wait_for_phase(cluster, "filler", "Failed")
    assert "No space left on device" in cluster.kubectl("logs", "filler")


def test_loading_an_image_again_costs_nothing(cluster: Cluster, busybox: Path) -> None:
    done = list[str]()
    assert cluster.load_image(busybox, report=done.append) == IMAGE
    assert [line for line in done if not line.startswith("attached ")] == []


def test_a_killed_node_stops_answering_at_once_and_comes_back_clean(
    cluster: Cluster, busybox: Path
) -> None:
    create(
        cluster,
        make_pod("victim", "httpd -f -p 8080 -h /tmp", "n2"),
        make_pod("doomed", "sleep 600", "n2"),
    )
    wait_for_phase(cluster, "victim", "Running")
    wait_for_phase(cluster, "doomed", "Running")
    address = field(cluster, "pod/victim", ".status.podIP")
    with socket.create_connection((address, 8080), timeout=5) as connection:
        cluster.node("n2").kill()
        assert not cgroups.processes(f"regroup/{NAME}/n2")
        connection.settimeout(1)
        with pytest.raises(TimeoutError):  # neither end nor reset: the packets are lost
            connection.recv(1)
    assert cluster.status()["nodes"][1]["link"] is False
    cluster.kubectl("delete", "pod", "doomed", "--grace-period=1", "--wait=false")
    assert field(cluster, "pod/doomed", ".metadata.deletionTimestamp")  # nobody is there to end it
    cluster.load_image(busybox, "localhost/loaded-meanwhile:1")
    cluster.node("n2").start()
    wait_until(
        "the end of the doomed pod", lambda: not field(cluster, "pod/doomed", ".metadata.name"), 90
    )
    assert not any("doomed" in str(point) for point in mounts.below(cluster.state / "n2"))
    restarts = ".status.containerStatuses[0].restartCount"
    wait_until("the pod again", lambda: field(cluster, "pod/victim", restarts) == "1", 90)
    cluster.kubectl("delete", "pod", "victim")
    late = make_pod("late", "sleep 600", "n2")
    late["spec"]["containers"][0].update(
        image="localhost/loaded-meanwhile:1", imagePullPolicy="Never"
    )
    create(cluster, late)
    wait_for_phase(cluster, "late", "Running")
    running = [
        item["name"] for item in cluster.status()["nodes"] if all(item["components"].values())
    ]
    assert running == ["n1", "n2"]


def test_a_frozen_node_stops_and_continues_after_the_thaw(cluster: Cluster) -> None:
    create(cluster, make_pod("counter", "n=0; while sleep 0.1; do n=$((n+1)); echo $n; done", "n1"))
    wait_for_phase(cluster, "counter", "Running")
    log = next((cluster.state / "n1" / "pods").glob("default_counter_*/main/0.log"))
    wait_until("the first count", log.read_text)
    cluster.node("n1").freeze()
    try:
        before = log.read_text()
        assert cluster.status()["nodes"][0]["frozen"] is True
        assert log.read_text() == before
    finally:
        cluster.node("n1").thaw()
    wait_until("more counts", lambda: len(log.read_text()) > len(before))


def test_a_partitioned_node_is_cut_off_while_its_pods_run(cluster: Cluster) -> None:
    create(cluster, make_pod("island", "httpd -f -p 8080 -h /etc; sleep 600", "n2"))
    wait_for_phase(cluster, "island", "Running")
    url = f"http://{field(cluster, 'pod/island', '.status.podIP')}:8080/"
    cluster.node("n2").partition()
    try:
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(url, timeout=1)
        assert all(cluster.status()["nodes"][1]["components"].values())
    finally:
        cluster.node("n2").heal()
    wait_until(
        "the pod again",
        lambda: "404" in _output(cluster, "exec", "island", "--", "wget", "-O-", url),
    )
    assert field(cluster, "pod/island", ".status.containerStatuses[0].restartCount") == "0"


def test_nodes_get_the_processor_before_what_else_runs_on_the_machine(cluster: Cluster) -> None:
    groups = [hierarchy / "regroup" for hierarchy in cgroups.hierarchies()]
    files = [group / name for group in groups for name in cgroups.CPU_WEIGHTS]
    weights = [file.read_text().strip() for file in files if file.exists()]
    assert weights in (["8192"], ["800"])


def test_up_returns_at_once_when_it_is_up_and_refuses_another_size(cluster: Cluster) -> None:
    before, done = cluster.status(), list[str]()
    assert Cluster.up(NAME, 2, done.append).status() == before, "its processes are the same"
    assert done == []
    refused = _devcluster("up", "--name", NAME, "--nodes", "3")
    assert refused.wait(30) != 0


def test_a_control_plane_that_lost_a_program_gets_it_back_and_keeps_its_objects(
    cluster: Cluster,
) -> None:
    cluster.kubectl("create", "configmap", "kept")
    cluster.processes.kill("kube-apiserver")
    cluster.processes.kill("kube-scheduler")
    assert all(Cluster.up(NAME, 2).status()["controlPlane"].values())
    cluster.kubectl("get", "configmap", "kept")


def test_the_command_line_shows_nodes_components_and_logs(cluster: Cluster) -> None:
    shown = json.loads(_shown("status", "--name", NAME, "--json"))
    assert [node["name"] for node in shown["nodes"]] == ["n1", "n2"]
    assert _shown("kubeconfig", "--name", NAME).strip() == str(cluster.kubeconfig)
    assert "kubelet-n2" in _shown("status", "--name", NAME)
    assert "Kubelet version" in _shown("logs", "kubelet-n1", "--name", NAME)


def _shown(*arguments: str) -> str:
    command = [sys.executable, "-m", "devcluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_second_cluster_runs_beside_it_and_survives_a_starter_that_is_killed(
    cluster: Cluster,
) -> None:
    other = "dc-other"
    starter = _devcluster("up", "--name", other, "--nodes", "1")
    try:
        wait_until(
            "half a cluster",
            lambda: Processes(cluster.state.parent / other).pid("kube-apiserver"),
            60,
        )
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        remove(other)
        assert footprint(other) == nothing()
        starter = _devcluster("up", "--name", other, "--nodes", "1")
        wait_until(
            "half a cluster",
            lambda: Processes(cluster.state.parent / other).pid("containerd-n1"),
            60,
        )
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        second = Cluster.up(other, 1)  # removes the incomplete cluster and creates a new one
        assert not second.plane.block.network.overlaps(cluster.plane.block.network)
        assert "n1" in second.kubectl("get", "nodes", "-o", "name")
    finally:
        remove(other)
    assert footprint(other) == nothing()
    assert all(node["ready"] for node in cluster.status()["nodes"])


def _devcluster(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "devcluster", *arguments], stderr=subprocess.DEVNULL
    )
