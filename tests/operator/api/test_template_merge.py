"""The pod template is merged as Kubernetes itself merges: kubectl is the judge."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster import binaries
from regroup_operator.api.template_merge import strategic_merge

BASE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                ]
            }
        },
        "containers": [
            {
                "name": "trainer",
                "image": "a:1",
                "command": ["python", "-m", "a"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "metrics", "containerPort": 8472, "protocol": "TCP"}],
                "volumeMounts": [
                    {"name": "v", "mountPath": "/v"},
                    {"name": "w", "mountPath": "/w"},
                ],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {"medium": "Memory"}}],
    },
}

PATCHES: dict[str, dict[str, Any]] = {
    "another image": {"spec": {"containers": [{"name": "trainer", "image": "b:2"}]}},
    "a sidecar": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}},
    "a sidecar and ours": {
        "spec": {"containers": [{"name": "side", "image": "s"}, {"name": "trainer", "image": "b"}]}
    },
    "variables": {
        "spec": {
            "containers": [{"name": "trainer", "env": [{"name": "B", "value": "3"}, {"name": "C"}]}]
        }
    },
    "a command": {"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}},
    "a mount": {
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "x", "mountPath": "/w"}]}]
        }
    },
    "a port": {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 80}]}]}},
    "resources": {
        "spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "1"}}}]}
    },
    "capabilities": {
        "spec": {
            "containers": [
                {"name": "trainer", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}
            ]
        }
    },
    "tolerations are replaced": {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}},
    "labels": {"metadata": {"labels": {"a": "2", "b": "3"}}},
    "a volume": {"spec": {"volumes": [{"name": "x", "configMap": {"name": "c"}}]}},
    "a volume made larger": {
        "spec": {"volumes": [{"name": "w", "emptyDir": {"sizeLimit": "1Gi"}}]}
    },
    "a field removed": {"spec": {"securityContext": {"fsGroup": None}}},
    "a node selector": {"spec": {"nodeSelector": {"gpu": "yes"}}},
    "spread": {
        "spec": {
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
                {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
            ]
        }
    },
    "affinity beside ours": {
        "spec": {
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname"}
                    ]
                },
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
                        ]
                    }
                },
            }
        }
    },
    "pull secrets": {"spec": {"imagePullSecrets": [{"name": "a"}]}},
    "host aliases": {"spec": {"hostAliases": [{"ip": "198.18.0.1", "hostnames": ["a"]}]}},
    "an init container": {"spec": {"initContainers": [{"name": "init", "image": "i"}]}},
    "a new and an old one": {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "env": [{"name": "Z", "value": "0"}, {"name": "A", "value": "9"}],
                }
            ]
        }
    },
}


@pytest.mark.parametrize("what", PATCHES)
def test_a_template_is_merged_as_kubectl_merges_a_strategic_patch(
    what: str, tmp_path: Path
) -> None:
    patch = PATCHES[what]
    file = tmp_path / "base.json"
    file.write_text(json.dumps(BASE))
    kubectl = binaries.build(lambda *_: None) / "kubectl"
    arguments = [
        "patch",
        "--local",
        "--type=strategic",
        "-f",
        str(file),
        "-p",
        json.dumps(patch),
        "-o",
        "json",
    ]
    judged = json.loads(
        subprocess.run([str(kubectl), *arguments], capture_output=True, check=True).stdout
    )
    assert _without_empty(strategic_merge(BASE, patch)) == _without_empty(judged)


def _without_empty(node: Any) -> Any:
    """kubectl's typed round trip adds empty objects (status, resources) that mean the same as
    none.
    """
    if isinstance(node, dict):
        pruned = {key: _without_empty(value) for key, value in node.items()}
        return {
            key: value
            for key, value in pruned.items()
            if value not in ({}, None) and key != "creationTimestamp"
        }
    return [_without_empty(entry) for entry in node] if isinstance(node, list) else node


def test_merging_changes_neither_side() -> None:
    base, patch = copy.deepcopy(BASE), copy.deepcopy(PATCHES["variables"])
    strategic_merge(base, patch)
    assert base == BASE
    assert patch == PATCHES["variables"]
