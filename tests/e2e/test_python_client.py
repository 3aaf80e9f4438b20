"""What a Python function needs of a cluster: packages from an index, and its own Python."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo import installation as installing
from regroup import Job, JobFailedError, PackageIndex, TrainingClient, TrainingJob
from tests.support.jobs import make_job
from tests.support.kube_api import Json
from tests.support.package_index import Index, make_wheel

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]
PASSWORD = "hunter2-of-the-index"


@pytest.fixture
def client(installation: Installation) -> Iterator[TrainingClient]:
    """A client of the test's namespace."""
    config = installation.kubectl.kubeconfig
    with TrainingClient(namespace=installation.namespace, kubeconfig=config) as client:
        yield client


def where_is_wanted() -> None:
    """What each rank does: it needs a package that no image has."""
    import importlib

    print("wanted is", importlib.import_module("wanted").__file__)


def test_packages_come_from_an_index_on_the_network_of_the_nodes(
    installation: Installation, client: TrainingClient, tmp_path: Path
) -> None:
    make_wheel(tmp_path, "wanted")
    with Index(tmp_path, installation.address_of_machine()) as index:
        job = client.train(
            where_is_wanted,
            name="packaged",
            workers=2,
            claim="shared",
            packages=["wanted"],
            package_index=PackageIndex(url=index.url, trusted=True),
        )
        status = job.wait(timeout=240)
    assert status.phase == "Succeeded", status.message
    lines = [line for line in job.logs() if "wanted is" in line]
    assert len(lines) == 2, list(job.logs())
    assert all("/regroup/packages/wanted.py" in line for line in lines)


def test_an_index_that_asks_for_a_password_gets_it_from_a_secret_which_nobody_else_sees(
    installation: Installation, client: TrainingClient, tmp_path: Path
) -> None:
    make_wheel(tmp_path, "wanted")
    with Index(tmp_path, installation.address_of_machine(), asks_for=PASSWORD) as index:
        make_secret(installation, "pip", index.url)
        make_secret(installation, "outdated", index.url_with(f"user:{PASSWORD}-before@"))
        with pytest.raises(JobFailedError, match=r"refuses this pod \(HTTP status 401\)"):
            train_with_secret(client, "outdated").wait(timeout=240)
        job = train_with_secret(client, "pip")
        status = job.wait(timeout=240)
    assert status.phase == "Succeeded", status.message
    assert any("/regroup/packages/wanted.py" in line for line in job.logs())
    shown = everything_shown(installation)
    forms = [PASSWORD, *in_base64(PASSWORD)]
    secrets = installation.kubectl("get", "secrets", "-o", "yaml", "-n", installation.namespace)
    assert any(form in secrets for form in forms)
    assert [form for form in forms if form in shown] == []
    assert "Successfully installed wanted-1.0" in shown
    assert f"user:****@{installation.address_of_machine()}" in shown


def train_with_secret(client: TrainingClient, secret: str) -> Job:
    """A job that needs a package of the index in a Secret, and does not try twice."""
    return client.train(
        where_is_wanted,
        name=f"with-{secret}",
        job=TrainingJob(f"with-{secret}", {"restartPolicy": {"maxRestarts": 0}}),
        packages=["wanted"],
        package_index=PackageIndex(secret=secret, trusted=True),
    )


def make_secret(installation: Installation, name: str, url: str) -> None:
    """A Secret with the address of an index."""
    content = f"--from-literal=index-url={url}"
    installation.kubectl("create", "secret", "generic", name, "-n", installation.namespace, content)


def everything_shown(installation: Installation) -> str:
    """What people see of the jobs of a namespace: objects, events, and logs of all containers,
    those of the operator too.
    """
    kubectl, here = installation.kubectl, ("-n", installation.namespace)
    kinds = "trainingjobs,pods,configmaps,events"
    pods = json.loads(kubectl("get", "pods", "-o", "json", *here))["items"]
    logs = [
        kubectl("logs", pod["metadata"]["name"], "-c", name, *here)
        for pod in pods
        for name in started(pod)
    ]
    operator = ("-n", installing.SYSTEM, "-l", "app.kubernetes.io/part-of=regroup")
    of_operator = kubectl("logs", *operator, "--tail=-1", "--all-containers")
    assert "with-pip" in of_operator
    return "\n".join([kubectl("get", kinds, "-o", "yaml", *here), of_operator, *logs])


def started(pod: Json) -> list[str]:
    """The names of its containers that have run: others have no log."""
    status = pod["status"]
    known = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return [one["name"] for one in known if "waiting" not in one["state"]]


def in_base64(text: str) -> list[str]:
    """What base64 makes of a text that stands in a longer one: its first four characters and the
    last ones may depend on what is beside it.
    """
    padded = [b" " * skip + text.encode() for skip in range(3)]
    return [base64.b64encode(part[: len(part) // 3 * 3]).decode()[4:] for part in padded]


def test_a_function_of_another_python_than_that_of_the_image_is_refused_before_pods(
    installation: Installation,
) -> None:
    container = {"name": "trainer", "command": ["python", "main.py"]}
    document = make_job("pickled", template={"spec": {"containers": [container]}})
    del document["spec"]["trainer"]
    document["metadata"]["annotations"] = {"regroup.dev/python": "3.9"}
    job = installation.start(document)
    ready = job.wait_for_condition("Ready", status="False")
    assert ready["reason"] == "InvalidSpec"
    assert "was pickled by Python 3.9: call train() from Python" in ready["message"]
    assert job.pods() == []
