"""kube-router is built once, when a cluster first enforces policies. That it enforces them is shown
by `tests/e2e/test_network_policy.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import policies
from devcluster.errors import CommandFailedError
from devcluster.progress import silent
from tests.support.fake_go import install_fake_go


def test_kube_router_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = install_fake_go(monkeypatch, tmp_path)
    first = policies.KUBE_ROUTER.build(silent)
    assert policies.KUBE_ROUTER.build(silent) == first
    assert len(count.read_text().splitlines()) == 1
    assert first.read_text().strip() == policies.PACKAGE


def test_a_build_that_fails_leaves_no_kube_router(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_fake_go(monkeypatch, tmp_path)
    monkeypatch.setenv("FAIL", policies.PACKAGE)
    with pytest.raises(CommandFailedError):
        policies.KUBE_ROUTER.build(silent)
    assert not policies.KUBE_ROUTER.file().exists()
