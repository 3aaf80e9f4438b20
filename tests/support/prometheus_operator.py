"""The definitions of the Prometheus operator, from its Go module."""

from __future__ import annotations

from pathlib import Path

from devcluster.binaries import module_sources

MODULE = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
"""Path, version, and the checksum that go.sum would have."""


def definition(plural: str) -> Path:
    """The file of a definition, such as that of `podmonitors`."""
    folder = module_sources(*MODULE) / "example/prometheus-operator-crd"
    return folder / f"monitoring.coreos.com_{plural}.yaml"
