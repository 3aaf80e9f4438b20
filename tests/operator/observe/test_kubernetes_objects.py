"""What is read of a Kubernetes object, also of one that somebody has edited."""

from __future__ import annotations

from typing import Any

from regroup_operator.api import names
from regroup_operator.observe.kubernetes_objects import read_pod


def make_pod(**metadata: Any) -> dict[str, Any]:
    """A worker pod with a sidecar before its main container; `metadata` overrides."""
    labels = names.labels("gpt", names.WORKER, index=2)
    containers = [{"name": "sidecar", "image": "proxy:7"}, {"name": "trainer", "image": "t:1"}]
    return {
        "metadata": {"name": "gpt-w2-1", "uid": "uid-1", "labels": labels, **metadata},
        "spec": {"containers": containers},
    }


def test_the_image_is_that_of_the_main_container() -> None:
    assert read_pod(make_pod()).image == "t:1"
