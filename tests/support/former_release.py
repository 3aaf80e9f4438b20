"""Release 0.2.0 from the history of this repository: its chart, its images, its operator, its
coordinators; and agents that speak its protocol.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from demo.installation import Image
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from tests.support.kube_api import ROOT, Json, Namespace
from tests.support.operator_process import OperatorProcess
from tests.support.own_addresses import own_addresses
from tests.support.waiting import wait_until
from tools.cache import cache_folder
from tools.commits import unpack
from tools.images import layout
from tools.images.__main__ import build_outdated, name_of
from tools.images.base import base_image
from tools.images.engine import choose_engine
from tools.images.inputs import TARGETS
from tools.locks import locked
from tools.progress import report

COMMIT = "30ba7d2a28ceafccf22c91112ff63475ab5f83d5"
PROTOCOL = 2
TAG = "release-0-2-0"
"""Of its images."""
IMAGES = {"trainer": "example/trainer:0.2.0", "coordinator": "example/operator:0.2.0"}
_PACKAGES = ("operator", "trainer", "client")
_addresses = own_addresses(84)


class FormerRelease:
    """Its files, in a folder."""

    def __init__(self, folder: Path) -> None:
        unpack(ROOT, COMMIT, folder)
        self._folder = folder
        self.chart = folder / "charts/regroup"
        self.environment = {"PYTHONPATH": os.pathsep.join(str(folder / p) for p in _PACKAGES)}

    def operator(self, kubeconfig: Path, folder: Path, key: bytes) -> OperatorProcess:
        """Its operator, to be started; it reads its key from a file."""
        (folder / "key").write_bytes(key)
        more = {
            "REGROUP_OPERATOR_KEY_FILE": str(folder / "key"),
            "REGROUP_OPERATOR_TRAINER_IMAGE": IMAGES["trainer"],
            "REGROUP_OPERATOR_COORDINATOR_IMAGE": IMAGES["coordinator"],
        }
        return OperatorProcess(kubeconfig, folder, {**more, **self.environment})

    def images(self) -> dict[str, Image]:
        """Its images by target, without what GPUs need. They are built once, and kept beside those
        of today. Raises ToolError.
        """
        cache = cache_folder()
        place = cache / "images-of-0.2.0"
        place.mkdir(exist_ok=True)
        names = {target: name_of(target, TAG) for target in TARGETS}
        with locked(cache / "locks" / "images", "the images", report):
            if not all(layout.find(place, target, TAG) for target in TARGETS):
                engine = choose_engine(cache)
                base = os.environ.get("BASE_IMAGE") or base_image(engine, cache)
                arguments = {"TORCH_SLIM": "1", "BASE_IMAGE": base}
                build_outdated(engine, dict.fromkeys(TARGETS, TAG), arguments, place, self._folder)
                engine.prune([*names.values()])
        found = {target: layout.find(place, target, TAG) for target in TARGETS}
        return {target: Image(names[target], path) for target, path in found.items() if path}

    def coordinator(self, pod: Json, namespace: Namespace, folder: Path) -> FormerCoordinator:
        """Its coordinator, as this pod would run it."""
        return FormerCoordinator(pod, token_of(namespace), folder, self.environment)


def token_of(namespace: Namespace) -> str:
    """The token of the one job in this namespace."""
    (secret,) = namespace.api.request("GET", namespace.core("secrets")).body["items"]
    return base64.b64decode(secret["data"]["token"]).decode()


class FormerCoordinator:
    """A coordinator of that release as a process, which reads the variables of its pod. A context
    manager.
    """

    def __init__(self, pod: Json, token: str, folder: Path, environment: dict[str, str]) -> None:
        self.address = next(_addresses)
        self.log = folder / f"{pod['metadata']['name']}.log"
        self._token = token
        (folder / "token").write_text(token)
        container = pod["spec"]["containers"][0]
        variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        desired = {**json.loads(variables["REGROUP_DESIRED"]), "directory": str(folder)}
        self._environment = {
            **os.environ,
            **variables,
            **environment,
            "REGROUP_DESIRED": json.dumps(desired),
            "REGROUP_NODE": "n1",
            "REGROUP_TOKEN_FILE": str(folder / "token"),
            "REGROUP_ADDRESS": self.address,
        }

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "regroup_trainer.coordinator"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        try:
            wait_until("a coordinator that answers", self._answers, seconds=60)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return bool(self.status())
        return False

    def status(self) -> Json:
        """What it reports."""
        url = f"http://{self.address}:{COORDINATOR_PORT}/v1/status"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: Json = json.loads(answer.read())
            return found


class FormerAgents:
    """Agents of that release, whose ranks make a step each second. A context manager."""

    def __init__(self, token: str) -> None:
        self.coordinator = ""
        """The address that they connect to."""
        self.refusals: list[str] = []
        self._headers = {"Authorization": f"Bearer {token}"}
        self._agents: dict[str, asyncio.Task[None]] = {}
        """By UID of the pod."""
        self._started, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def start(self, pod: Json) -> None:
        """Run the agent of a worker pod."""
        self._loop.call_soon_threadsafe(self._start, pod)

    def end(self, pod: Json) -> None:
        """It is killed."""
        task = self._agents.pop(pod["metadata"]["uid"])
        self._loop.call_soon_threadsafe(task.cancel)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession(headers=self._headers) as self._session:
            self._started.set()
            await self._ended.wait()
            for task in self._agents.values():
                task.cancel()
            await asyncio.gather(*self._agents.values(), return_exceptions=True)

    def _start(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._agents[uid] = asyncio.create_task(self._run(_Agent(pod)))

    async def _run(self, agent: _Agent) -> None:
        """Connect again and again."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await self._connect(agent)
            await asyncio.sleep(0.1)

    async def _connect(self, agent: _Agent) -> None:
        url = f"http://{self.coordinator}:{COORDINATOR_PORT}/v1"
        async with self._session.ws_connect(f"{url}/agent") as socket:
            await socket.send_json(agent.hello())
            beating = asyncio.create_task(self._live(agent, socket, f"{url}/heartbeat/{agent.uid}"))
            try:
                async for message in socket:
                    document = json.loads(message.data)
                    if document["kind"] == "refused":
                        self.refusals.append(document["reason"])
                    for answer in agent.on_message(document):
                        await socket.send_json(answer)
            finally:
                beating.cancel()

    async def _live(self, agent: _Agent, socket: Any, url: str) -> None:
        while True:
            async with self._session.post(url):
                pass
            for progress in agent.progress():
                await socket.send_json(progress)
            await asyncio.sleep(1.0)


_BEGAN = time.monotonic()


def _step() -> int:
    """The step that all ranks have made."""
    return int(time.monotonic() - _BEGAN)


class _Agent:
    """What one agent knows, in the messages of protocol 2."""

    def __init__(self, pod: Json) -> None:
        metadata = pod["metadata"]
        self.uid: str = metadata["uid"]
        self._index = int(metadata["labels"]["regroup.dev/index"])
        self._pod: str = metadata["name"]
        self._record: Json | None = None
        self._restored: Json | None = None
        self._progress: Json | None = None

    def hello(self) -> Json:
        return {
            "kind": "hello",
            "protocol": PROTOCOL,
            "member": self.uid,
            "index": self._index,
            "pod": self._pod,
            "node": f"n{1 + self._index}",
            "ranks": 1,
            "store": "127.0.0.1:1",
            "record": self._record,
            "highest": self._record and self._record["number"],
            "restored": self._restored,
            "progress": self._progress,
        }

    def on_message(self, message: Json) -> list[Json]:
        """The answers."""
        if message["kind"] == "leave_generation" and self._record is not None:
            ended = {"kind": "rank_exit", "exit_code": 1, "cause": "peer"}
            left = [{**ended, **self._place()}]
            self._record = self._restored = self._progress = None
            return left
        if message["kind"] != "begin":
            return []
        self._record = message["record"]
        self._restored = {"kind": "restored", **self._place(), "step": _step()}
        if self._place()["rank"] == 0:
            self._restored["restored_from"] = message["record"]["restored_from"]
        return [self._restored]

    def progress(self) -> list[Json]:
        """The report of one step more; none while no generation trains."""
        if self._record is None:
            return []
        place = {"kind": "progress", **self._place()}
        self._progress = {**place, "step": _step(), "time": time.time()}
        return [self._progress]

    def _place(self) -> Json:
        assert self._record is not None
        ranks = {member["member"]: member["first_rank"] for member in self._record["members"]}
        return {"generation": self._record["number"], "rank": ranks.get(self.uid, 0)}
