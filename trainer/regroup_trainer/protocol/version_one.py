"""Translates for a coordinator of release 0.1 (protocol 1) or 0.2.0 (protocol 2) that still runs in
an old pod. Pure.

The images of a job are fixed when it starts, so that its coordinator and agents stay at the release
they started with while the operator is upgraded. Both protocols refuse fields that they do not
know. Protocol 2 differs from 1 in names of the coordinator's answer only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 1
RESTORED_FROM = {
    "start": "Nothing",
    "L0": "Peers",
    "L1": "Snapshot",
    "L2": "Checkpoint",
    "script": "Script",
}
"""Value of `rung` -> value of `restored_from`."""
_RECOVERY = {
    "rung": "restored_from",
    "world_before": "world_size_before",
    "world_after": "world_size_after",
}
"""Name of a field of protocol 1 -> its name since."""
DESIRED_FIELDS = frozenset(
    {
        "revision", "namespace", "job", "replicas", "min_replicas", "max_replicas",
        "replica_group_size", "spares", "suspend", "heartbeat_milliseconds",
        "timeout_milliseconds", "start_grace_seconds", "max_restarts", "backoff_seconds",
        "max_backoff_seconds", "progress_timeout_seconds", "max_hang_restarts",
        "straggler_percent", "train", "script", "checkpoint", "resume", "directory", "seed",
    }
)  # fmt: skip
"""The fields of Desired that both protocols know. They refuse all others."""
LEDGER_FIELDS = frozenset({"seconds", "lost_work_seconds", "lost_steps", "restarts"})
"""Those of its `seed`."""
DESIRED_VERSIONS = frozenset({VERSION, 2})
"""The protocols with these fields."""


def upgrade_status(document: Mapping[str, Any]) -> dict[str, Any]:
    """An answer to GET /v1/status with the names of today. What is malformed stays malformed."""
    status = {name: value for name, value in document.items() if name != "verdict"}
    recoveries = document.get("recoveries")
    if isinstance(recoveries, list):
        status["recoveries"] = [_upgrade_recovery(recovery) for recovery in recoveries]
    if "verdict" in document:
        verdict = document["verdict"]
        is_whole = isinstance(verdict, Mapping)
        status["outcome"] = _renamed(verdict, {"outcome": "result"}) if is_whole else verdict
    return status


def _upgrade_recovery(recovery: Any) -> Any:
    if not isinstance(recovery, Mapping):
        return recovery
    rung = recovery.get("rung")
    known = {**recovery, "rung": RESTORED_FROM.get(rung, rung)} if isinstance(rung, str) else {}
    return _renamed(known or recovery, _RECOVERY)


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in document.items()}
