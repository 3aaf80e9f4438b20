"""`helm test` beside an operator with the rights of the chart, on a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kube_api import Api
from tests.support.operator_process import RELEASE, installed_operator

pytestmark = pytest.mark.apiserver


def test_it_passes_with_the_operators_own_rights_while_one_leads(api: Api, tmp_path: Path) -> None:
    operator = installed_operator(api, tmp_path)
    module = [sys.executable, "-m", "regroup_operator.installation_check"]
    command = [*module, f"{RELEASE}/regroup-operator"]
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")}
    try:
        operator.start()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    finally:
        operator.end()
    assert done.returncode == 0, done.stderr
    leads, reads = done.stdout.splitlines()
    assert "leads, and renews Lease regroup-system/regroup-operator" in leads
    assert reads == "the operator may read the TrainingJobs of all namespaces"
