"""Our check of names and amounts in a pod says the same as a real API server, by dry runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regroup_operator.api.pod_types import FORMATS, find_mismatch
from tests.support.kube_api import Json, Namespace

pytestmark = pytest.mark.apiserver


def pod(metadata: Json | None = None, container: Json | None = None, **spec: Any) -> Json:
    """The smallest pod, and what is added to it."""
    main = {"name": "trainer", "image": "i", **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", **(metadata or {})},
        "spec": {"containers": [main], **spec},
    }


def near(selector: Json) -> Json:
    """A pod that keeps away from those that a selector matches."""
    term = {"labelSelector": selector, "topologyKey": "zone"}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return pod(affinity={"podAntiAffinity": rule})


def probe(fields: Json) -> Json:
    """A pod whose container is asked over TCP whether it is ready."""
    return pod(container={"readinessProbe": {"tcpSocket": {"port": 1}, **fields}})


def mounted(fields: Json) -> Json:
    """A pod that mounts a volume."""
    mount = {"name": "data", "mountPath": "/data", **fields}
    return pod(container={"volumeMounts": [mount]}, volumes=[{"name": "data", "emptyDir": {}}])


PODS: dict[str, Callable[[Json], Json]] = {
    "ObjectMeta": lambda given: pod(metadata=given),
    "LabelSelector": near,
    "PodSpec": lambda given: pod(**given),
    "Container": lambda given: pod(container=given),
    "ResourceRequirements": lambda given: pod(container={"resources": given}),
    "ContainerPort": lambda given: pod(container={"ports": [{"containerPort": 1, **given}]}),
    "EnvVar": lambda given: pod(container={"env": [{"name": "A", **given}]}),
    "Volume": lambda given: pod(volumes=[{"emptyDir": {}, **given}]),
    "VolumeMount": mounted,
    "Toleration": lambda given: pod(tolerations=[{"key": "a", **given}]),
    "Probe": probe,
    "GRPCAction": lambda given: pod(container={"livenessProbe": {"grpc": {"port": 1, **given}}}),
    "PodSchedulingGate": lambda given: pod(schedulingGates=[given]),
    "PodOS": lambda given: pod(os=given),
    "EnvFromSource": lambda given: pod(
        container={"envFrom": [{"secretRef": {"name": "a"}, **given}]}
    ),
    "SecurityContext": lambda given: pod(container={"securityContext": given}),
    "PodSecurityContext": lambda given: pod(securityContext=given),
    "TopologySpreadConstraint": lambda given: pod(
        topologySpreadConstraints=[
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **given}
        ]
    ),
}
"""Type -> a pod that holds an object of it."""

A63, A64, A253, A254 = "a" * 63, "a" * 64, "a" * 253, "a" * 254
LABELS = ("a b", "a/b", "a/b/c", "A/b", "a.b/C", "-a", "a-", "a_.-b", A63, A64, "a/", "/a", "", "ä",
          f"{A253}/a", f"{A254}/a", "a..b/c", "a.-b/c")  # fmt: skip
NAMES = "a", "A", "a b", "a.b", "-a", "a-", "1", "a..b", "a.-b", "a_b", A63, A64, A253, A254, "ä"
KEYED = [{key: "1"} for key in LABELS]
ODD: tuple[Any, ...] = (1, 0, 1.5, 2**63, -1, True, None, ["a"], {}, 1e300)
VALUED = [{"a": value} for value in (*LABELS, *ODD)]
AMOUNTS = (
    "1", "1e1", "1E2", "500m", "16Gi", "1.5Gi", ".5", "1.", "+1", "-1", "-0", "1 Gi", "1gi", "1K",
    "banana", "1Ki", "1k", "1u", "1n", "1ki", "1e", "1e+3", "1e-3", "Gi", "0x1", "1e400", "9" * 40,
    "1_000", "1,5", "inf", "nan", "", "m", ".", "+", "-", "+m", "E", "e3", "-.0", "-1m",
)  # fmt: skip
NUMBERS = -(2**31) - 1, -(2**31), -1, 0, 1, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**63
OTHERS: list[Any] = [1.5, "1", True, [], {}, ""]
# Lt and Gt of tolerations are left out: a feature gate of the cluster says whether they are taken.
VALUES: dict[tuple[str, str], list[Any]] = {
    ("ObjectMeta", "labels"): [*KEYED, *VALUED, [], "a", 7],
    ("ObjectMeta", "annotations"): [*KEYED, {"a": "b c"}, {"a": 1}, [], 7],
    ("LabelSelector", "matchLabels"): [*KEYED, *VALUED],
    ("PodSpec", "nodeSelector"): [*KEYED, *VALUED],
    ("ResourceRequirements", "limits"): [
        *({"memory": amount} for amount in (*AMOUNTS, *ODD)),
        *({"cpu": amount} for amount in AMOUNTS),
        *({f"example.com/{key}": "1"} for key in ("a", "A", "a b", "-a", A63, A64)),
        *({key: "1"} for key in ("gpu", "memroy", "nvidia.com/gpu", "a/b/c")),
        *(
            {"nvidia.com/gpu": amount}
            for amount in ("1", "0.5", "500m", "1e1", 1, 0, "1.0", "1k", 2.5)
        ),
    ],
    ("ResourceRequirements", "requests"): [
        *({"memory": amount} for amount in AMOUNTS),
        *({key: "1"} for key in ("gpu", "cpu", "ephemeral-storage")),
    ],
    ("PodSpec", "priorityClassName"): [*NAMES],
    ("PodSpec", "serviceAccountName"): [*NAMES],
    ("PodSpec", "runtimeClassName"): [*NAMES],
    ("PodSpec", "schedulerName"): [*NAMES],
    ("PodSpec", "dnsPolicy"): ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "first", ""],
    ("PodSpec", "terminationGracePeriodSeconds"): [*NUMBERS, *OTHERS],
    ("PodSpec", "activeDeadlineSeconds"): [*NUMBERS, *OTHERS],
    ("Container", "name"): [*NAMES, ""],
    ("Container", "image"): ["a", "a:1", "a b", " a", "a ", "\ta", "ä", "A:1", "a@b", 7],
    ("Container", "imagePullPolicy"): ["Always", "IfNotPresent", "Never", "never", ""],
    ("Container", "terminationMessagePolicy"): ["File", "FallbackToLogsOnError", "x", ""],
    ("Container", "workingDir"): ["/a", "a", "", "/a:b", 7],
    ("ContainerPort", "containerPort"): [*NUMBERS, *OTHERS],
    ("ContainerPort", "hostPort"): [0, 1, -1, 65535, 65536, "1"],
    ("ContainerPort", "name"): ["a", "A", "1", "a1", "a--b", "-a", "a-", "a" * 15, "a" * 16, ""],
    ("ContainerPort", "protocol"): ["TCP", "UDP", "SCTP", "tcp", "x", ""],
    ("EnvVar", "name"): [
        "A",
        "a.b",
        "a-b",
        "1a",
        "a b",
        "A=B",
        "",
        "ä",
        "a\n",
        "a\t",
        ".",
        "..",
        "~",
    ],
    ("Volume", "name"): [*NAMES, ""],
    ("VolumeMount", "mountPath"): ["/a", "a", "/a:b", "", "/", "..", "../a"],
    ("VolumeMount", "subPath"): ["a", "../a", "/a", "a/../b", "", "..a"],
    ("Toleration", "operator"): ["Exists", "Equal", "In", "exists", ""],
    ("Toleration", "effect"): ["NoSchedule", "PreferNoSchedule", "NoExecute", "No", ""],
    ("Probe", "periodSeconds"): [*NUMBERS, *OTHERS],
    ("Probe", "timeoutSeconds"): [*NUMBERS],
    ("Probe", "failureThreshold"): [*NUMBERS],
    ("Probe", "successThreshold"): [*NUMBERS],
    ("Probe", "initialDelaySeconds"): [*NUMBERS],
    ("GRPCAction", "port"): [*NUMBERS],
    ("PodSchedulingGate", "name"): [*LABELS],
    ("PodOS", "name"): ["linux", "windows", "Linux", "${A}", ""],
    ("EnvFromSource", "prefix"): ["A_", "a.b-", "a b", "A=B", "", "ä", "~"],
    ("SecurityContext", "runAsUser"): [*NUMBERS],
    ("SecurityContext", "runAsGroup"): [*NUMBERS],
    ("PodSecurityContext", "runAsUser"): [*NUMBERS],
    ("PodSecurityContext", "runAsGroup"): [*NUMBERS],
    ("PodSecurityContext", "fsGroup"): [*NUMBERS],
    ("TopologySpreadConstraint", "maxSkew"): [*NUMBERS],
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ["DoNotSchedule", "ScheduleAnyway", "x"],
}


def test_every_format_is_compared() -> None:
    assert not set(FORMATS) - set(VALUES)


NAMES_OF_OBJECTS = "priorityClassName", "serviceAccountName", "runtimeClassName"
"""Fields of a PodSpec about which admission says first that there is no such object. The rule for
their names is that of all objects.
"""


def refusal(namespace: Namespace, kind: str, field: str, value: Any) -> str:
    """Why the API server does not take the value; empty when it does."""
    path, document = "pods", PODS[kind]({field: value})
    if field in NAMES_OF_OBJECTS:
        path, document = "serviceaccounts", {"metadata": {"name": value}}
    answer = namespace.api.request("POST", namespace.core(f"{path}?dryRun=All"), document)
    return "" if answer.status == 201 else f"{answer.status} {answer.message}"


@pytest.mark.parametrize(("kind", "field"), VALUES)
def test_what_we_take_the_api_server_takes_and_the_reverse(
    kind: str, field: str, namespace: Namespace
) -> None:
    differ = []
    for value in VALUES[kind, field]:
        ours = find_mismatch(PODS[kind]({field: value}), "Pod", "pod")
        theirs = refusal(namespace, kind, field, value)
        if bool(ours) != bool(theirs):
            differ.append(f"{value!r}: {ours or 'taken'} -- {theirs or 'taken'}")
    assert not differ, "\n".join(differ)
