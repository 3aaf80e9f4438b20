"""One constant decides which Kubernetes is built."""

from __future__ import annotations

import pytest

from devcluster import versions
from devcluster.binaries import linker_flags, program_keys
from devcluster.errors import DevclusterError


def go_mod() -> str:
    return (versions.GO_MODULE / "go.mod").read_text()


def test_the_go_module_requires_the_kubernetes_of_the_constant() -> None:
    versions.check_pinned(go_mod())
    assert versions.required(go_mod(), "k8s.io/kubernetes") == f"v{versions.KUBERNETES_VERSION}"


def test_pinning_another_kubernetes_moves_it_and_all_its_staging_modules() -> None:
    pinned = versions.pin_kubernetes(go_mod(), "1.99.7")
    assert versions.required(pinned, "k8s.io/kubernetes") == "v1.99.7"
    assert "k8s.io/api => k8s.io/api v0.99.7" in pinned
    assert versions.pin_kubernetes(pinned, versions.KUBERNETES_VERSION) == go_mod()


def test_a_module_that_is_behind_the_constant_is_refused_with_advice() -> None:
    with pytest.raises(DevclusterError, match="build --pin"):
        versions.check_pinned(versions.pin_kubernetes(go_mod(), "1.0.0"))


def test_the_version_is_written_into_the_programs() -> None:
    assert f"gitVersion=v{versions.KUBERNETES_VERSION}" in linker_flags(go_mod())


def test_every_program_has_a_key_of_its_own() -> None:
    keys = program_keys(versions.GO_MODULE)
    assert len(set(keys.values())) == len(keys)
