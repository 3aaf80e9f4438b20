"""Follows one fault on the cluster, from the strike until the job trains again."""

from __future__ import annotations

import contextlib
import time
from http.client import HTTPException
from typing import Any

from demo.errors import DemoError, StoryError
from demo.ten_faults.answer import unsaid
from demo.ten_faults.expectations import SLOW, Fault
from demo.ten_faults.observation import Look, Observed
from demo.ten_faults.scene import Scene, Struck
from demo.waiting import wait_for
from devcluster.errors import DevclusterError
from tests.support.repeating import repeated

ALERT_SECONDS = 180.0
QUIET_SECONDS = 45.0
"""How long no alert may fire where none should."""
RECOVERY_SECONDS = 300.0
EVERY_SECONDS = 0.5
Json = dict[str, Any]


class Course:
    """What is seen of one fault. A thread notes alerts and recovery, while commands are typed."""

    def __init__(self, scene: Scene, fault: Fault, run: str = "") -> None:
        self._scene, self._fault, self._expected, self._run = scene, fault, fault.expected, run
        self._before = set(scene.alerts(fault.job))
        """Alerts that an earlier fault has left."""
        self._generation = scene.status(fault.job).get("rendezvousGeneration")
        self._began = time.monotonic()
        self._alerts: dict[str, float] = {}
        self._pending: set[str] = set()
        self._recovered_after: float | None = None
        """Of a job that heals by itself, or after somebody acted."""
        self._is_over = False
        """Whether the alert is over too."""
        self._acted = False
        self._shown_after: float | None = None
        self._struck = Struck()

    def run(self) -> Observed:
        """Strike, look, act, look again. Raises DemoError."""
        self.strike()
        with repeated(self._note, EVERY_SECONDS):
            try:
                height = self._height()
                healed = self._heals()
            finally:
                self._acted = True
                acted_after = self._seconds()
                self._struck.act()
            self._wait_over()
            after = self._look()
        since = 0.0 if healed else acted_after
        recovered = self._recovered_after
        return Observed(
            height=height,
            after=after,
            shown_after=self._shown_after,
            alerts=dict(sorted(self._alerts.items(), key=lambda one: one[1])),
            pending=frozenset(self._pending - set(self._alerts)),
            healed=healed,
            recovered_after=None if recovered is None else recovered - since,
            names=self._struck.names,
            run=self._run,
        )

    def strike(self) -> None:
        """Strike. Times count from when this begins, or from the moment that the strike names."""
        self._began = time.monotonic()
        self._struck = self._fault.strike(self._scene)
        if self._struck.at is not None:
            self._began = self._struck.at

    def _height(self) -> Look:
        """What a user sees whom the alerts have woken; where there are none, as soon as it is
        shown, and while no alert comes.
        """
        while True:
            look = self._look()
            said = not unsaid(self._expected.answer, self._struck.names, look.why)
            if said and self._shown_after is None:
                self._shown_after = look.seconds
            if self._is_high(look.seconds, said=said) or look.seconds > ALERT_SECONDS:
                return look
            time.sleep(EVERY_SECONDS)

    def _is_high(self, seconds: float, *, said: bool) -> bool:
        """Whether all has been shown that is waited for."""
        fired = [self._alerts.get(alert) for alert in self._expected.alerts]
        if not fired:
            return said and seconds > QUIET_SECONDS
        times = [at for at in fired if at is not None]
        if len(times) < len(fired):
            return False
        return said or seconds > max(times) + self._expected.patience_seconds

    def _look(self) -> Look:
        """Type both commands, in the order in which a page shows them."""
        job = self._fault.job
        line = self._scene.type_in(f"kubectl get trainingjob {job}")[1]
        code, why = self._scene.type_in(f"kubectl trainingjob why {job}")
        return Look(self._seconds(), why, code, line)

    def _note(self) -> None:
        """Note the alerts, and whether the job trains again. While a query fails, as of a server
        that is overloaded, nothing is known; the next look may find it.
        """
        with contextlib.suppress(DemoError, DevclusterError, OSError, HTTPException, ValueError):
            self._look_around()

    def _look_around(self) -> None:
        seconds, found = self._seconds(), self._scene.alerts(self._fault.job)
        found = {name: state for name, state in found.items() if name not in self._before}
        self._pending |= set(found)
        for name, state in found.items():
            if state == "firing":
                self._alerts.setdefault(name, seconds)
        may_recover = self._acted or self._expected.heals or self._expected.ends
        if may_recover and self._recovered_after is None and self._is_well():
            self._recovered_after = seconds
        self._is_over = self._recovered_after is not None and self._expected.alert not in found

    def _heals(self) -> bool:
        """Whether the job trains again without anybody. It is waited for where it should."""
        if not self._expected.heals:
            return not self._expected.ends and self._is_well()
        self._wait_over()
        return self._recovered_after is not None

    def _wait_over(self) -> None:
        """Wait until the job trains (or has failed, where it should) and its alert is over, if it
        does in time.
        """
        deadline = time.monotonic() + RECOVERY_SECONDS
        while not self._is_over and time.monotonic() < deadline:
            time.sleep(EVERY_SECONDS)

    def _is_well(self) -> bool:
        """With all its workers, and after the failure where the fault is one; or failed, where it
        should.
        """
        status = self._scene.status(self._fault.job)
        if self._expected.ends:
            return status.get("phase") == "Failed"
        later = status.get("rendezvousGeneration") != self._generation
        return is_whole(status) and (later or not self._expected.heals)

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
        return is_whole(scene.status(job)) and not set(scene.alerts(job)) - SLOW

    def hint() -> str:
        return f"{scene.alerts(job)} {scene.type_in(f'kubectl trainingjob why {job}')[1]}"

    try:
        wait_for(f"training of {job} without alerts", whole, RECOVERY_SECONDS, every=1, hint=hint)
    except StoryError:
        scene.screen.report(hint(), "red")
        raise
