"""How the cause of each alert is made, and how it is taken away."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from demo.caused_alerts.jobs import BUG, OPERATOR_PROGRAM, idle, loop_of, program, switch
from demo.installation import RELEASE, SYSTEM
from demo.kubectl import call
from demo.ten_faults.scene import NAMESPACE, Json, Scene, Struck
from demo.ten_faults.strikes import single
from regroup_operator.api import names

CONFLICTING = "gpt-conflict"
IDLE = tuple(f"idle-{number}" for number in range(10))
"""Jobs whose status cannot be written. A round that fails is tried again ever later, up to a
minute, which is not shortened: one job alone would not fail often enough for shortened rules.
"""
STATUS = "trainingjobs/status"
OPERATOR = f"-n {SYSTEM} deployment/{RELEASE}"
ROLLED_OUT = "--timeout=120s"
MOUNTED = "/faulty"


# --- a program that fails -------------------------------------------------------------------------


def program_fails(fault: str) -> Callable[[Scene], Struck]:
    """The loop meets a fault of its program, its data or its storage, by name."""

    def strike(scene: Scene) -> Struck:
        file = switch(scene)
        file.write_text(fault)
        return Struck(file.unlink)

    return strike


# --- objects and networks -------------------------------------------------------------------------


def take_name(scene: Scene) -> Struck:
    """Somebody has a Service with the name of the one that a job will need."""
    service = names.service(CONFLICTING, names.COORDINATOR)
    scene.must(f"kubectl create service clusterip {service} --tcp=80")
    scene.stage.kubectl.apply(single(CONFLICTING), namespace=NAMESPACE)
    return Struck(lambda: scene.must(f"kubectl delete service {service}"))


def cut_off_coordinator(scene: Scene) -> Struck:
    """Nothing that it sends to the operator or to Prometheus arrives. Its workers and its kubelet
    reach it.
    """
    (pod,) = loop_of(scene).pods("coordinator")
    node = scene.stage.cluster.node(pod["spec"]["nodeName"]).node
    network = f"/proc/{node.pod_processes(pod['metadata']['uid'])[0]}/ns/net"
    far = [*operator_addresses(scene), address_towards(pod["status"]["podIP"])]

    def change(verb: str) -> None:
        for address in far:
            route = ("ip", "route", verb, "blackhole", f"{address}/32")
            call(["nsenter", f"--net={network}", *route])

    change("add")
    return Struck(lambda: change("del"))


def operator_addresses(scene: Scene) -> list[str]:
    """Of the pods of the operator."""
    pods = scene.stage.kubectl.read("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/part-of=regroup")
    return [pod["status"]["podIP"] for pod in pods["items"]]


def address_towards(address: str) -> str:
    """The address of this machine from which it reaches another, as Prometheus does."""
    (route,) = json.loads(call(["ip", "-json", "route", "get", address]))
    return str(route["prefsrc"])


# --- the operator ---------------------------------------------------------------------------------


def stop_operator(scene: Scene) -> Struck:
    """No replica is left."""
    replicas = scene.stage.kubectl.read("deployment", RELEASE, "-n", SYSTEM)["spec"]["replicas"]
    _scale(scene, 0)
    return Struck(lambda: _scale(scene, replicas))


def _scale(scene: Scene, replicas: int) -> None:
    scene.must(f"kubectl scale {OPERATOR} --replicas={replicas}")
    wait_operator(scene)


def wait_operator(scene: Scene) -> None:
    """Wait until all replicas are as the Deployment wants them. Raises StoryError."""
    scene.must(f"kubectl rollout status {OPERATOR} {ROLLED_OUT}")


def take_right(scene: Scene) -> Struck:
    """The operator may write no status any more, and new jobs have none yet."""
    rules = scene.stage.kubectl.read("clusterrole", RELEASE)["rules"]
    place = next(at for at, rule in enumerate(rules) if STATUS in rule["resources"])
    path = f"/rules/{place}"
    _patch(scene, f"clusterrole {RELEASE}", [{"op": "remove", "path": path}])
    scene.stage.kubectl.apply(*map(idle, IDLE), namespace=NAMESPACE)
    given = [{"op": "add", "path": path, "value": rules[place]}]
    return Struck(lambda: _patch(scene, f"clusterrole {RELEASE}", given))


def give_bug(scene: Scene) -> None:
    """Start the operator with a bug. It meets one job alone."""
    scene.stage.kubectl.apply(program(OPERATOR_PROGRAM, "sitecustomize.py"), namespace=SYSTEM)
    container = "/spec/template/spec/containers/0"
    mount = {"name": "faulty", "mountPath": MOUNTED}
    volume = {"name": "faulty", "configMap": {"name": OPERATOR_PROGRAM}}
    added = {
        f"{container}/env/-": {"name": "PYTHONPATH", "value": MOUNTED},
        f"{container}/volumeMounts/-": mount,
        "/spec/template/spec/volumes/-": volume,
    }
    patch = [{"op": "add", "path": path, "value": value} for path, value in added.items()]
    _patch(scene, f"-n {SYSTEM} deployment {RELEASE}", patch)
    wait_operator(scene)


def meet_bug(scene: Scene) -> Struck:
    """Create the job that meets it."""
    scene.stage.kubectl.apply(single(BUG), namespace=NAMESPACE)
    return Struck(lambda: take_bug(scene))


def take_bug(scene: Scene) -> None:
    """Start the operator as it was."""
    scene.must(f"kubectl rollout undo {OPERATOR}")
    wait_operator(scene)


def _patch(scene: Scene, what: str, patch: list[Json]) -> None:
    scene.must(f"kubectl patch {what} --type=json -p {shlex.quote(json.dumps(patch))}")
