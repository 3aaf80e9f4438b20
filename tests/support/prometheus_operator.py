"""The definitions of the Prometheus operator and what its tests expect, from its Go module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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


def expected_configuration(golden: str) -> dict[str, dict[str, Any]]:
    """The jobs of a configuration that the operator's own tests expect, by name, without the rules
    that share targets out between several Prometheus.
    """
    file = module_sources(*MODULE) / f"pkg/prometheus/testdata/{golden}.golden"
    jobs = yaml.safe_load(file.read_text())["scrape_configs"]
    for job in jobs:
        rules = job["relabel_configs"]
        job["relabel_configs"] = [one for one in rules if "__tmp_hash" not in str(one)]
    return {job["job_name"]: job for job in jobs}
