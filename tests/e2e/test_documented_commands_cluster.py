"""What the pages have users type at a cluster is typed at one, with a job that trains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.documented_commands import commands
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation
    from tests.support.jobs import Job

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "manifests/samples/smallest.yaml"
SECONDS = 60
FOLLOWS = (" -w", " -f ")
"""These go on until somebody ends them: they are left out."""
API_SERVER = "client/cli/test_documented_commands_apiserver.py"
ELSEWHERE = {
    "kubectl drain": "test_drain.py",
    "kubectl debug node/": "needs an image from a registry: nobody runs it",
    "kubectl -n NAMESPACE top pod": API_SERVER,
    "kubectl create configmap": "test_scripts.py",
    "kubectl apply -f": "test_samples.py",
    "kubectl apply -k": "chart/test_chart_package.py",
    "kubectl delete crd": API_SERVER,
    "kubectl get pytorchjob": API_SERVER,
    "kubectl get clustertrainingruntime": API_SERVER,
    "kubectl trainingjob doctor": "client/cli/test_verbs_apiserver.py",
    "kubectl exec": "demo/walkthrough",
    "kubectl trainingjob ui": "client/web_page/test_cluster_page_apiserver.py",
    "kubectl -n regroup-system scale": "test_losses.py",
    "kubectl -n NAMESPACE logs POD --previous": API_SERVER,
    "kubectl get trainingjobs -A -o json | jq": API_SERVER,
    "kubectl -n $NAMESPACE": "needs variables of its page; tests of render/keyring",
}
"""Beginning of a command -> who runs it, or why nobody can."""
RESTS = ("Running", "Suspended")
ORDER = ("simulate-failure", "scale", "suspend", '"suspend":true', "resume", '"suspend":false')
"""Commands that change the job, in the order in which they can all succeed; the others come
before.
"""
ASKING = ("simulate-failure", "checkpoint verify", "checkpoint export")
"""Commands that ask before they make or delete pods."""

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]


def typed() -> list[str]:
    """Each command once, in an order in which it can succeed."""
    found = dict.fromkeys(command.text for command in commands("kubectl"))
    kept = [
        text
        for text in found
        if not any(mark in f"{text} " for mark in FOLLOWS) and not text.startswith(tuple(ELSEWHERE))
    ]
    return sorted(kept, key=_order)


def _order(text: str) -> int:
    return next((n for n, mark in enumerate(ORDER, 1) if mark in text), 0)


def as_typed(text: str, job: Job, pod: str, node: str) -> str:
    """A command with the names of this job, of its pod and of a node."""
    names = {
        "NAMESPACE": job.namespace, "NAME": job.name, "NODE": node, "POD": pod, "gpt-w1-1": pod,
        "KIND OBJECT": f"service {job.name}-coordinator",
    }  # fmt: skip
    pattern = "|".join(rf"\b{name}\b(?!:)" for name in names)
    yes = " --yes" if any(verb in text for verb in ASKING) else ""
    return re.sub(pattern, lambda found: names[found[0]], text) + yes


def type_in(line: str, environment: dict[str, str], folder: Path) -> str:
    """Type a line in a shell; returns what went wrong, or nothing."""
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment,
        cwd=folder,
        timeout=SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    print(f"$ {line}\n{done.stdout}{done.stderr}")
    finds_nothing = "| grep" in line and done.returncode == 1
    return "" if done.returncode == 0 or finds_nothing else f"{line}: {done.stderr.strip()[-300:]}"


def shell(installation: Installation, job: Job, folder: Path) -> dict[str, str]:
    """The environment of a user whose kubeconfig names the job's namespace."""
    kubectl = installation.kubectl
    config = folder / "kubeconfig"
    config.write_text(kubectl("config", "view", "--raw", "--minify", "--flatten"))
    where = ("--current", f"--namespace={job.namespace}", f"--kubeconfig={config}")
    kubectl("config", "set-context", *where)
    programs = (Path(sys.executable).parent, Path(kubectl.command()[0]).parent)
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    return {**os.environ, "KUBECONFIG": str(config), "PATH": path}


def test_commands_for_a_cluster_do_what_pages_say(
    installation: Installation, tmp_path: Path
) -> None:
    manifest = yaml.safe_load(SAMPLE.read_text())
    manifest["spec"]["trainer"]["training"]["steps"] = 1_000_000
    manifest["spec"]["checkpoint"]["intervalSteps"] = 20
    job = installation.start(manifest)
    assert job.name == "gpt", "as in the pages"
    job.wait_until_whole_and_saved()
    environment = shell(installation, job, tmp_path)
    node = installation.kubectl.read("nodes")["items"][0]["metadata"]["name"]
    pod = job.workers()[-1]["metadata"]["name"]
    failed = []
    for text in typed():
        if _order(text):
            wait_until("it to rest", lambda: job.status()["phase"] in RESTS, seconds=120)
        failed.append(type_in(as_typed(text, job, pod, node), environment, tmp_path))
    assert not [failure for failure in failed if failure]
