"""What the pages have users type at a cluster is typed at one, with a job that trains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from demo import installation as installing
from tests.support.command_executions import commands_of_cluster
from tests.support.documented_commands import commands
from tests.support.page_terminal import PageTerminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation
    from tests.support.jobs import Job

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "manifests/samples/smallest.yaml"
SECONDS = 200
"""For any command: a drain and `doctor` wait for pods."""
INSTALL = (
    "helm install regroup charts/regroup -n regroup-system --create-namespace --wait "
    "--set-string image.repository=REGISTRY/regroup-operator,image.tag=TAG "
    "--set-string trainer.image.repository=REGISTRY/regroup-trainer,trainer.image.tag=TAG"
)
FIRST_PAGE, FIRST_NAMESPACE = "docs/start/cluster.md", "first-page"
RESTS = ("Running", "Suspended")
ORDER = (
    "--from-checkpoint", "simulate-failure", "scale", "suspend", '"suspend":true', "resume",
    '"suspend":false', "kubectl cordon", "kubectl drain", "kubectl delete pods",
)  # fmt: skip
"""Commands that change the job, in the order in which they can all succeed; the others come
before.
"""
ASKING = (
    "simulate-failure", "trainingjob checkpoint export", "doctor", "trainingjob restart",
)  # fmt: skip
"""Commands that ask before they make or delete pods, or give up what was trained."""

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800)]


def typed() -> list[str]:
    """Each command once, in an order in which it can succeed."""
    return sorted(commands_of_cluster(), key=_order)


def _order(text: str) -> int:
    return next((n for n, mark in enumerate(ORDER, 1) if mark in text), 0)


def as_typed(text: str, job: Job, pod: str, node: str) -> str:
    """A command with the names of this job, of its pod and of a node."""
    names = {
        "NAMESPACE": job.namespace, "NAME": job.name, "NODE": node, "POD": pod, "gpt-w1-1": pod,
        "KIND OBJECT": f"service {job.name}-coordinator", "DIRECTORY": folder_of(job),
        "4000": str(job.status()["checkpoint"]["lastStep"]),
    }  # fmt: skip
    pattern = "|".join(rf"\b{name}\b(?!:)" for name in names)
    more = " --yes" if any(verb in text for verb in ASKING) and "--yes" not in text else ""
    if "doctor" in text:  # the nodes reach no registry
        more += f" --image {installing.images()['trainer'].name}"
    return re.sub(pattern, lambda found: names[found[0]], text) + more


def folder_of(job: Job) -> str:
    """The job's folder on the volume, as its pods see it."""
    return str(Path(job.status()["checkpoint"]["path"]).parents[1])


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
    config = user_config(installation, job.namespace, folder)
    programs = (Path(sys.executable).parent, Path(installation.kubectl.command()[0]).parent)
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    return {**os.environ, "KUBECONFIG": str(config), "PATH": path}


def user_config(installation: Installation, namespace: str, folder: Path) -> Path:
    """A kubeconfig that names a namespace, in `folder`."""
    kubectl = installation.kubectl
    config = folder / "kubeconfig"
    config.write_text(kubectl("config", "view", "--raw", "--minify", "--flatten"))
    where = ("--current", f"--namespace={namespace}", f"--kubeconfig={config}")
    kubectl("config", "set-context", *where)
    return config


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
    with schedulable(installation, node):
        for text in typed():
            if _order(text):
                wait_until("it to rest", lambda: job.status()["phase"] in RESTS, seconds=120)
            failed.append(type_in(as_typed(text, job, pod, node), environment, tmp_path))
    assert not [failure for failure in failed if failure]


@contextmanager
def schedulable(installation: Installation, node: str) -> Iterator[None]:
    """Afterwards, pods come to the node again, and the operator's replicas are there."""
    try:
        yield
    finally:
        installation.kubectl("uncordon", node)
        rollout = ("rollout", "status", "deployment", "regroup", "--timeout=110s")
        installation.kubectl("-n", installing.SYSTEM, *rollout)


def test_the_first_page_of_a_cluster_works_from_top_to_bottom(
    installation: Installation, tmp_path: Path
) -> None:
    """On a cluster without Regroup, in a namespace without a claim. The images are built, and the
    environment under test has the command line.
    """
    kubectl = installation.kubectl
    kubectl("create", "namespace", FIRST_NAMESPACE)
    terminal = clone(installation, tmp_path, FIRST_NAMESPACE)
    programs = commands("helm", "kubectl")
    first, *others = [command.text for command in programs if command.page == FIRST_PAGE]
    try:
        terminal.type("helm uninstall regroup -n regroup-system")
        terminal.type(first, changes=image_names())
        for text in others:
            if text.endswith(" -w"):
                with terminal.running(text) as until:
                    until("Running")
                continue
            checks = {"doctor": f"doctor --image {installing.images()['trainer'].name}"}
            changes = checks if "doctor" in text else {}
            asks = any(verb in text for verb in ASKING)
            shown = terminal.type(text, changes=changes, answers="y\n" if asks else "")
            assert not re.search(r"^FAIL ", shown, re.MULTILINE), shown
    finally:
        kubectl("delete", "namespace", FIRST_NAMESPACE, "--wait=false")
        installing.helm_install(kubectl, installing.images())


def clone(installation: Installation, folder: Path, namespace: str) -> PageTerminal:
    """The shell of an administrator of this namespace, in a clone."""
    for name in ("charts", "manifests"):
        (folder / name).symlink_to(ROOT / name)
    config = user_config(installation, namespace, folder)
    program = Path(installation.kubectl.command()[0])
    return PageTerminal(folder, {"KUBECONFIG": str(config)}, (program.parent,))


def image_names() -> dict[str, str]:
    """What the pages have for the names of images -> the names of ours."""
    built = installing.images()
    return {
        f"REGISTRY/regroup-{target},{prefix}image.tag=TAG": (
            f"{built[target].repository},{prefix}image.tag={built[target].tag}"
        )
        for target, prefix in (("operator", ""), ("trainer", "trainer."))
    }


def test_the_release_is_uninstalled_installed_and_tested_as_pages_say(
    installation: Installation, tmp_path: Path
) -> None:
    terminal = clone(installation, tmp_path, installation.namespace)
    try:
        terminal.type("helm uninstall regroup -n regroup-system")
        terminal.type(INSTALL, changes=image_names())
        for text in (
            "helm test regroup -n regroup-system",
            "helm test regroup -n regroup-system --logs",
        ):
            assert "Succeeded" in terminal.type(text)
            terminal.type("kubectl -n regroup-system delete pod regroup-test")
        terminal.type("kubectl -n regroup-system delete pod regroup-test --ignore-not-found")
    finally:
        installing.helm_install(installation.kubectl, installing.images())
