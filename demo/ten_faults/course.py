"""Follows one fault on the cluster, from the strike until the job trains again."""

from __future__ import annotations

import time
from typing import Any

from demo.errors import StoryError
from demo.ten_faults.expectations import SLOW, Fault
from demo.ten_faults.observation import Look, Observed, filled, missing
from demo.ten_faults.scene import NAMESPACE, Scene, Struck
from demo.waiting import wait_for

ALERT_SECONDS = 180.0
QUIET_SECONDS = 45.0
"""How long no alert may fire where none should."""
RECOVERY_SECONDS = 300.0
EVERY_SECONDS = 0.5
Json = dict[str, Any]


class Course:
    """What is seen of one fault, round by round."""

    def __init__(self, scene: Scene, fault: Fault) -> None:
        self._scene, self._fault, self._expected = scene, fault, fault.expected
        self._generation = self._status().get("rendezvousGeneration")
        self._began = time.monotonic()
        self._alerts: dict[str, float] = {}
        self._pending: set[str] = set()
        self._firing: dict[str, str] = {}
        self._shown_after: float | None = None
        self._struck = Struck()

    def run(self) -> Observed:
        """Strike, look, act, look again. Raises DemoError."""
        self._struck = self._fault.strike(self._scene)
        try:
            height = self._height()
            healed = self._heals()
        finally:
            acted = time.monotonic()
            self._struck.act()
        recovered = self._wait_recovered()
        since = self._began if healed else acted
        return Observed(
            height=height,
            after=self._look(),
            shown_after=self._shown_after,
            alerts=dict(sorted(self._alerts.items(), key=lambda one: one[1])),
            pending=frozenset(self._pending - set(self._alerts)),
            healed=healed,
            recovered_after=None if recovered is None else recovered - since,
            names=self._struck.names,
        )

    def _height(self) -> Look:
        """What a user sees whom the alert has woken; where there is none, as soon as it is shown,
        and while no alert comes.
        """
        wanted, patience = self._expected.alert, self._expected.patience_seconds
        while True:
            look = self._look()
            said = not missing(filled(self._expected.words, self._struck.names), look.why)
            if said and self._shown_after is None:
                self._shown_after = look.seconds
            alert_at = self._alerts.get(wanted or "")
            if wanted is None and look.seconds > QUIET_SECONDS:
                return look
            if alert_at is not None and (said or look.seconds > alert_at + patience):
                return look
            if look.seconds > ALERT_SECONDS:
                return look
            time.sleep(EVERY_SECONDS)

    def _look(self) -> Look:
        """Type both commands, and note the alerts."""
        job = self._fault.job
        self._note_alerts()
        seconds = self._seconds()
        code, why = self._scene.type_in(f"kubectl trainingjob why {job}")
        line = self._scene.type_in(f"kubectl get trainingjob {job}")[1]
        return Look(seconds, why, code, line)

    def _note_alerts(self) -> None:
        self._firing = self._scene.alerts(self._fault.job)
        self._pending |= set(self._firing)
        for name, state in self._firing.items():
            if state == "firing":
                self._alerts.setdefault(name, self._seconds())

    def _heals(self) -> bool:
        """Whether the job trains again without anybody. It is waited for where it should."""
        return self._wait_recovered() is not None if self._expected.heals else self._trains()

    def _wait_recovered(self) -> float | None:
        """When the job trained with all its workers (or failed, where it should), and its alert
        was over; None: not in time.
        """
        recovered: float | None = None
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            if recovered is None and (self._failed() if self._expected.ends else self._trains()):
                recovered = time.monotonic()
            self._note_alerts()
            if recovered is not None and self._expected.alert not in self._firing:
                return recovered
            time.sleep(EVERY_SECONDS)
        return recovered

    def _trains(self) -> bool:
        """With all its workers, and after the failure where the fault is one."""
        status = self._status()
        later = status.get("rendezvousGeneration") != self._generation
        return is_whole(status) and (later or not self._expected.heals)

    def _failed(self) -> bool:
        return self._status().get("phase") == "Failed"

    def _status(self) -> Json:
        kubectl = self._scene.stage.kubectl
        for one in kubectl.read("trainingjobs", "-n", NAMESPACE)["items"]:
            if one["metadata"]["name"] == self._fault.job:
                return dict(one.get("status", {}))
        return {}

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def is_whole(status: Json) -> bool:
    """Whether a job trains with all the workers that it wants, and nothing is degraded."""
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return (
        status.get("phase") == "Running"
        and conditions.get("Ready") == "True"
        and conditions.get("Degraded") == "False"
        and conditions.get("Checkpointed") == "True"
    )


def wait_whole(scene: Scene, job: str) -> None:
    """Wait until a job trains and no alert is about it. Raises StoryError."""

    def whole() -> bool:
        found = scene.stage.kubectl.read("trainingjob", job, "-n", NAMESPACE)
        return is_whole(found.get("status", {})) and not set(scene.alerts(job)) - SLOW

    def hint() -> str:
        return f"{scene.alerts(job)} {scene.type_in(f'kubectl trainingjob why {job}')[1]}"

    try:
        wait_for(f"training of {job} without alerts", whole, RECOVERY_SECONDS, every=1, hint=hint)
    except StoryError:
        scene.screen.report(hint(), "red")
        raise
