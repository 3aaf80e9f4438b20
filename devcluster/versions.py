"""The version of Kubernetes, and the functions that pin the Go module to it.

`go/go.mod` pins everything else (etcd, containerd, Helm, CoreDNS).
"""

from __future__ import annotations

import re
from pathlib import Path

from devcluster.errors import DevclusterError

KUBERNETES_VERSION = "1.36.1"
GO_MODULE = Path(__file__).parent / "go"


def required(go_mod: str, module: str) -> str:
    """The version of `module` that a go.mod requires, with its leading v."""
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise DevclusterError(f"go.mod requires no {module}: add it with `go get {module}`.")
    return found[1]


def pin_kubernetes(go_mod: str, version: str) -> str:
    """The text of a go.mod that requires Kubernetes `version`, including its staging modules
    (v0.<minor>.<patch>).
    """
    staging = re.sub(r"^1\.", "0.", version)
    text = re.sub(r"(k8s\.io/kubernetes) v\S+", rf"\1 v{version}", go_mod)
    return re.sub(r"^(\s*(k8s\.io/[\w-]+) => \2) v\S+", rf"\1 v{staging}", text, flags=re.MULTILINE)


def check_pinned(go_mod: str) -> None:
    """Raise DevclusterError unless go.mod requires `KUBERNETES_VERSION` everywhere."""
    if pin_kubernetes(go_mod, KUBERNETES_VERSION) != go_mod:
        raise DevclusterError(
            "devcluster/go/go.mod requires a version of Kubernetes other than KUBERNETES_VERSION "
            f"{KUBERNETES_VERSION}: "
            "run `python -m devcluster build --pin`."
        )
