"""What a Python function needs of a cluster: packages from an index, and its own Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from regroup import PackageIndex, TrainingClient
from tests.support.jobs import make_job
from tests.support.package_index import Index, make_wheel

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long]


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
