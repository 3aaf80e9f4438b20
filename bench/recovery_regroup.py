"""Subjects `regroup` and `regroup-fsdp` of bench/recovery.py: the real coordinator, agents and
ranks.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Literal

from bench.nodes import CONTROL, Nodes
from bench.outcome import Step
from bench.recovery_settings import (
    GLOBAL_BATCH,
    HEARTBEAT_SECONDS,
    LEAST_WORKERS,
    LOST_SECONDS,
    MICRO_BATCH,
    MODEL,
    PYTHON_PATH,
    SAMPLES,
    SAVE_EVERY,
    SEQUENCE_LENGTH,
    SNAPSHOT_EVERY,
    VOCABULARY,
    WORKERS,
)
from bench.recovery_subject import Subject
from regroup_trainer.protocol.config import (
    CheckpointPolicy,
    DataConfig,
    ParallelismConfig,
    TrainConfig,
    TrainingConfig,
)
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.environment import AgentEnvironment, CoordinatorEnvironment
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus

TOKEN = "bench"
PORT = 8471
WAIT_SECONDS = 5.0
"""The coordinator is asked for what is new; it answers after this time at the latest."""
RETRY_SECONDS = 0.1
STEPS = 10**6
ENTRY = "bench.recovery_rank"
POLICY = CheckpointPolicy(interval_steps=SAVE_EVERY, memory_snapshot_steps=SNAPSHOT_EVERY)


def desired(
    folder: Path, workers: int, strategy: Literal["ddp", "fsdp"], least: int = LEAST_WORKERS
) -> Desired:
    """The desired state: a tiny model that trains without end."""
    train = TrainConfig(
        model=MODEL,
        data=DataConfig(source="synthetic", samples=SAMPLES, classes=VOCABULARY),
        parallelism=ParallelismConfig(strategy=strategy),
        training=TrainingConfig(
            steps=STEPS,
            global_batch_size=GLOBAL_BATCH,
            micro_batch_size=MICRO_BATCH,
            sequence_length=SEQUENCE_LENGTH,
        ),
    )
    return Desired(
        revision=1,
        namespace="bench",
        job="recovery",
        replicas=workers,
        min_replicas=least,
        max_replicas=WORKERS,
        heartbeat_milliseconds=int(HEARTBEAT_SECONDS * 1000),
        timeout_milliseconds=int(LOST_SECONDS * 1000),
        progress_timeout_seconds=int(LOST_SECONDS),
        max_restarts=-1,
        max_hang_restarts=-1,
        train=train,
        checkpoint=POLICY,
        directory=str(folder / "job"),
    )


class Regroup(Subject):
    """Agents on the nodes, the coordinator on the control plane."""

    def __init__(
        self,
        nodes: Nodes,
        folder: Path,
        workers: int,
        strategy: Literal["ddp", "fsdp"] = "ddp",
        least: int = LEAST_WORKERS,
    ) -> None:
        super().__init__(nodes, folder, workers)
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._desired = desired(folder, workers, strategy, least)
        self._term = self._incarnation = 0
        self._known: set[tuple[GenerationNumber, int]] = set()
        self._status: CoordinatorStatus | None = None
        self._url = f"http://{nodes.address(CONTROL)}:{PORT}"
        self._ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def start_control(self) -> subprocess.Popen[bytes]:
        """Start the coordinator of the next term."""
        self._term += 1
        environment = CoordinatorEnvironment(
            term=self._term,
            node="control-plane",
            token_file=str(self._token),
            port=PORT,
            desired=self._desired.model_dump_json(),
        )
        command = [sys.executable, "-m", "regroup_trainer.coordinator"]
        return self.nodes.start(
            CONTROL, command, environment.variables(), self.folder / "coordinator.log"
        )

    def start_worker(self, index: int, node: int) -> subprocess.Popen[bytes]:
        """Start an agent."""
        self._incarnation += 1
        name = f"w{index}-{self._incarnation}"
        environment = AgentEnvironment(
            coordinator_url=self._url,
            token_file=str(self._token),
            namespace="bench",
            job="recovery",
            member=str(uuid.uuid4()),
            index=index,
            pod=name,
            node=f"node-{node}",
            address=self.nodes.address(node),
            metrics_port=0,
            termination_log=str(self.folder / f"{name}.termination"),
            entry=ENTRY,
        )
        variables = {**environment.variables(), "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHON_PATH}
        return self.nodes.start(
            node,
            [sys.executable, "-m", "regroup_trainer.agent"],
            variables,
            self.folder / f"{name}.log",
        )

    def scale(self, workers: int) -> None:
        """Send the desired size to the coordinator, which ends the surplus agents."""
        self._desired = self._desired.model_copy(
            update={"revision": self._desired.revision + 1, "replicas": workers}
        )
        for index in [index for index in self.workers if index >= workers]:
            del self.workers[index]
        self.desired_workers = workers
        self._ask("PUT", "/v1/desired", self._desired.model_dump_json().encode())

    def look(self) -> None:
        """Read the history; a generation may repeat lines of the one before."""
        now = time.time()
        for _, line in self.new_lines("job/history/*.jsonl"):
            note: Any = line
            key = GenerationNumber(*note["generation"]), note["step"]
            if key not in self._known:
                self._known.add(key)
                self._steps.append(Step(str(key[0]), key[1], now, note["loss"]))

    def world_size(self) -> int:
        """The world size that the coordinator reports; 0 while it does not run."""
        status = self._status
        return status.world_size if status is not None and status.phase == "running" else 0

    def detected(self, since: float) -> float | None:
        """The first loss that the coordinator has recorded."""
        recoveries = self._status.recoveries if self._status else ()
        return next((recovery.time for recovery in recoveries if recovery.time > since), None)

    def close(self) -> None:
        """Stop polling the coordinator."""
        self._ended.set()

    def _listen(self) -> None:
        """Poll the status of the coordinator, as the operator does."""
        while not self._ended.is_set():
            after = self._status.sequence if self._status else -1
            answer = self._ask("GET", f"/v1/status?after={after}&wait={WAIT_SECONDS}")
            self._status = CoordinatorStatus.model_validate_json(answer) if answer else None
            if answer is None:
                self._ended.wait(RETRY_SECONDS)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        """The coordinator's answer; None when it does not answer."""
        request = urllib.request.Request(
            self._url + path, body, {"Authorization": f"Bearer {TOKEN}"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=2 * WAIT_SECONDS) as answer:
                found: bytes = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        return found
