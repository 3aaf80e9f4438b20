"""A user's own image and script: the agent is brought there, and the script restarted from what it
saved itself.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from demo import installation as installing
from regroup_operator.render.exact_image import with_digest
from tests.support.jobs import Job, make_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = pytest.mark.cluster

SCRIPT = """
import os, time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
folder = Path(os.environ["REGROUP_DIRECTORY"])
folder.mkdir(parents=True, exist_ok=True)
saved = folder / "count"
count = int(saved.read_text()) if saved.exists() else 0
while True:
    enough = torch.tensor([float((folder / "enough").exists())])
    dist.all_reduce(enough)
    if enough.item():
        break
    count += 1
    if dist.get_rank() == 0:
        (folder / "count.new").write_text(str(count))
        (folder / "count.new").rename(saved)
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_script_in_an_image_of_ones_own_survives_its_rank_and_its_pod(
    installation: Installation,
) -> None:
    template = _template_with_script(installation)
    job = installation.start(make_job("own-image", replicas=2, trainer=None, template=template))
    job.wait_for_ranks(2)
    assert [c["name"] for c in job.workers()[0]["spec"]["initContainers"]] == ["regroup-agent"]
    saved = installation.volume(job).folder / "count"

    def counted_beyond(count: int) -> int | None:
        now = int(saved.read_text()) if saved.exists() else 0
        return now if now > count else None

    count = wait_until("the script to save", lambda: counted_beyond(5), seconds=60)
    os.kill(installation.process_of_rank(job, 1), signal.SIGKILL)
    wait_until(
        "the restart to be counted",
        lambda: job.status()["restarts"]["application"] == 1,
        seconds=60,
    )
    count = wait_until("it to go on", lambda: counted_beyond(count + 20), seconds=60)

    victim = job.workers()[1]["metadata"]["name"]
    installation.kubectl(
        "delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force"
    )
    wait_until("the loss to be counted", lambda: _lost_pods(job) == 1, seconds=60)
    job.wait_for_ranks(2, seconds=120)
    pod = job.workers()[1]
    (state,) = pod["status"]["containerStatuses"]
    # Nobody can pull an image that was loaded into the nodes by its digest.
    named = with_digest(installing.images()["trainer"].name, state["imageID"])
    assert pod["spec"]["containers"][0]["image"] == job.status()["images"]["trainer"] == named
    print(f"the kubelet reports {state['imageID']} for {named}")
    count = wait_until("it to go on once more", lambda: counted_beyond(count + 20), seconds=60)
    (saved.parent / "enough").touch()
    job.wait_for_condition("Complete", seconds=120)
    assert job.status()["restarts"]["application"] == 1


def _template_with_script(installation: Installation) -> dict[str, Any]:
    """Create a ConfigMap with the script, and return a template whose container runs it."""
    name, script = "script", f"--from-literal=train.py={SCRIPT}"
    installation.kubectl("create", "configmap", name, "-n", installation.namespace, script)
    container = {
        "name": "trainer",
        "image": installing.images()["trainer"].name,
        "command": ["python3", "/script/train.py"],
        "volumeMounts": [{"name": name, "mountPath": "/script"}],
    }
    volume = {"name": name, "configMap": {"name": name}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


def _lost_pods(job: Job) -> int:
    """Whether it was asked to go first, or was just gone, is the kubelet's matter."""
    restarts: dict[str, int] = job.status()["restarts"]
    return restarts["infrastructure"] + restarts["preemption"]
