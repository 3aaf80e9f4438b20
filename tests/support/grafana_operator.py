"""The definition of grafana-operator's dashboards, from its Go module."""

from __future__ import annotations

from pathlib import Path

from devcluster.binaries import module_sources

MODULE = (
    "github.com/grafana-operator/grafana-operator/v5",
    "v5.5.2",
    "h1:jGjNn1VhxX96FK8NTaTuHfzpIENAwbY6iYCSDtYuxI8=",
)
"""Path, version, and the checksum that go.sum would have. The first releases of v5 do not know
`configMapRef`.
"""


def definition() -> Path:
    """The file of the definition."""
    return (
        module_sources(*MODULE) / "config/crd/bases/grafana.integreatly.org_grafanadashboards.yaml"
    )
