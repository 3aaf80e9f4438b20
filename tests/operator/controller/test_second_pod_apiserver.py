"""A second live pod of one worker: the real operator and a real coordinator, on a real API server,
agree on which of the two goes. Test code stands in for the kubelets and for the agents.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import aiohttp
import pytest

from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.environment import COORDINATOR_PORT, CoordinatorEnvironment
from regroup_trainer.protocol.job_status import CoordinatorStatus
from tests.support.generations import make_hello
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import NODES, OperatorProcess
from tests.support.own_addresses import own_addresses
from tests.support.running_job import run_workers, start_job
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

_addresses = own_addresses(95)
SPEC = put(SMALLEST, "failureDetection", {"timeoutMilliseconds": 60_000})
"""These agents send no heartbeats."""


def answers(address: str) -> bool:
    """Whether a coordinator listens there."""
    with suppress(OSError), urlopen(f"http://{address}:{COORDINATOR_PORT}/healthz"):
        return True
    return False


@contextmanager
def real_coordinator(namespace: Namespace, pod: Json, folder: Path) -> Iterator[tuple[str, str]]:
    """What the pod would run, with its environment: the address and the job's token."""
    given = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
    (secret,) = [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v]
    (data,) = (
        namespace.api.request("GET", namespace.core(f"secrets/{secret}")).body["data"].values()
    )
    token, address = base64.b64decode(data).decode(), next(_addresses)
    (folder / "token").write_text(token)
    desired = Desired.model_validate_json(given[CoordinatorEnvironment.variable("desired")])
    environment = CoordinatorEnvironment(
        term=1,
        node="n1",
        token_file=str(folder / "token"),
        address=address,
        desired=desired.model_copy(update={"directory": str(folder / "job")}).model_dump_json(),
    )
    command = [sys.executable, "-m", "regroup_trainer.coordinator"]
    with subprocess.Popen(command, env={**os.environ, **environment.variables()}) as process:
        try:
            wait_until("an answer", lambda: answers(address), seconds=120)
            yield address, token
        finally:
            process.kill()


def make_second(namespace: Namespace, pod: Json, name: str) -> None:
    """The request for a pod of this worker that was executed late."""
    metadata = {key: pod["metadata"][key] for key in ("labels", "ownerReferences")}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": name}, "spec": spec}
    answer = namespace.api.request("POST", namespace.core("pods"), body)
    assert answer.status == 201, answer.message


@dataclass
class Connected:
    """A coordinator, and agents that have connected to it and do nothing else."""

    url: str
    headers: dict[str, str]
    stack: AsyncExitStack

    async def connect(self, pod: Json, index: int) -> None:
        """The agent of this pod says hello, and stays connected."""
        metadata = pod["metadata"]
        hello = make_hello(index, member=metadata["uid"], pod=metadata["name"])
        session = aiohttp.ClientSession(headers=self.headers)
        await self.stack.enter_async_context(session)
        socket = await self.stack.enter_async_context(session.ws_connect(f"{self.url}/v1/agent"))
        await socket.send_str(hello.shortened().model_dump_json())

    def status(self) -> CoordinatorStatus:
        """What it answers the operator."""
        with urlopen(Request(f"{self.url}/v1/status", headers=self.headers), timeout=30) as answer:
            return CoordinatorStatus.model_validate_json(answer.read())

    def ranks(self) -> int:
        """How many members have one."""
        return sum(member.rank is not None for member in self.status().members)


async def until_true(what: str, holds: Callable[[], object]) -> None:
    """Wait, while the agents stay connected."""
    await asyncio.to_thread(wait_until, what, holds, 60)


@pytest.mark.parametrize("second", ["gpt-w1-0", "gpt-w1-9"])
async def test_of_two_pods_of_a_worker_the_one_without_a_rank_at_a_real_coordinator_is_deleted(
    operator: OperatorProcess, namespace: Namespace, tmp_path: Path, second: str
) -> None:
    kubelets = await asyncio.to_thread(start_job, namespace, SPEC, 60)
    workers = run_workers(kubelets)
    names = [worker["metadata"]["name"] for worker in workers]
    async with AsyncExitStack() as stack:
        pod = kubelets.pods()["gpt-c1"]
        address, token = stack.enter_context(real_coordinator(namespace, pod, tmp_path))
        url, headers = f"http://{address}:{COORDINATOR_PORT}", {"Authorization": f"Bearer {token}"}
        coordinator = Connected(url, headers, stack)
        for index, worker in enumerate(workers):
            await coordinator.connect(worker, index)
        await until_true("ranks", lambda: coordinator.ranks() == 3)
        before = coordinator.status()
        kubelets.run("gpt-c1", "n1", address)
        await until_true("them", lambda: namespace.read()["status"].get("worldSize") == 3)
        make_second(namespace, workers[1], second)
        await coordinator.connect(kubelets.run(second, NODES[1]), 1)
        await until_true("one to go", lambda: len(kubelets.pods("worker")) == 3)
        assert sorted(kubelets.pods("worker")) == names
        after = coordinator.status()
        assert (after.generation, after.recoveries) == (before.generation, before.recoveries)
