"""The floor: a script that posts the objects of Regroup's jobs, and no operator."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bench.operators.client import Json, gather, until
from bench.operators.cluster import NAMESPACE
from bench.operators.subjects import REPLICAS, START_SECONDS, RegroupOperator

PATTERN = "pattern-of-a-job"
COLLECTIONS = (
    f"/api/v1/namespaces/{NAMESPACE}/services",
    f"/api/v1/namespaces/{NAMESPACE}/secrets",
    f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    f"/api/v1/namespaces/{NAMESPACE}/pods",
)
"""What a job consists of; pods last, as they need the others."""
KEPT_METADATA = ("name", "labels", "annotations")
GIVEN_SPEC = ("nodeName", "clusterIP", "clusterIPs")
"""What the API server and the scheduler fill in."""


class Floor(RegroupOperator):
    """It learns from one job of Regroup's operator what to post, and then ends the operator."""

    can_restart = False

    async def install(self) -> None:
        """With the objects of one job."""
        await super().install()
        await super().create(PATTERN)
        await until(self._pattern_trains, START_SECONDS)
        self._objects = [
            (path, json.dumps(_as_posted(one)))
            for path in COLLECTIONS
            for one in (await self.client.request("GET", path))["items"]
            if one["metadata"].get("labels", {}).get(self.label) == PATTERN
        ]
        self.end(REPLICAS)
        await self.client.request("DELETE", f"{self.jobs_path}/{PATTERN}")
        for path in COLLECTIONS:
            await self.client.request("DELETE", f"{path}?labelSelector={self.label}={PATTERN}")
        await until(self._pattern_is_gone, START_SECONDS)

    async def _pattern_is_gone(self) -> bool:
        query = f"?labelSelector={self.label}={PATTERN}"
        found = [(await self.client.request("GET", path + query))["items"] for path in COLLECTIONS]
        return not any(found)

    async def _pattern_trains(self) -> bool:
        job = await self.client.request("GET", f"{self.jobs_path}/{PATTERN}")
        return super().trains(job)

    async def create(self, name: str) -> float:
        """The job first, then all that belongs to it."""
        sent = await super().create(name)
        made = [(path, json.loads(text.replace(PATTERN, name))) for path, text in self._objects]
        others = [one for one in made if one[0] != COLLECTIONS[-1]]
        pods = [one for one in made if one[0] == COLLECTIONS[-1]]
        for some in (others, pods):
            await gather(self.script.request("POST", path, body) for path, body in some)
        return sent

    def processes(self) -> Mapping[str, int]:
        """None of its own."""
        return {}

    def standby(self) -> str | None:
        """None, as there is no process."""
        return None

    def trains(self, _job: Json) -> bool:
        """Nobody writes a status."""
        return True


def _as_posted(found: Json) -> Json:
    metadata = {key: value for key, value in found["metadata"].items() if key in KEPT_METADATA}
    kept = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    if "spec" in kept:
        spec = {key: value for key, value in kept["spec"].items() if key not in GIVEN_SPEC}
        kept["spec"] = spec
    return {"metadata": metadata, **kept}
