"""Follows one alert on the cluster, from its cause until it has ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from http.client import HTTPException

from demo.caused_alerts.causes import Cause
from demo.caused_alerts.sighting import Json, Sighting
from demo.errors import DemoError, StoryError
from demo.ten_faults.answer import unsaid
from demo.ten_faults.observation import Look
from demo.ten_faults.scene import Scene, Struck
from demo.waiting import wait_for

QUIET_SECONDS = 300.0
"""The longest wait for the end of what earlier causes have left."""
FIRES_SECONDS = 240.0
ENDS_SECONDS = 240.0
PATIENCE_SECONDS = 60.0
"""How long after the alert `why` may still say less."""
EVERY_SECONDS = 0.5
FAILURES = (DemoError, OSError, HTTPException, ValueError)
"""Of a query to Prometheus or Alertmanager."""


class AlertCourse:
    """What is seen of one alert."""

    def __init__(self, scene: Scene, cause: Cause) -> None:
        self._scene, self._cause = scene, cause
        self._began = time.monotonic()

    def run(self) -> Sighting:
        """Prepare, see that the alert is quiet, cause it, look, act, wait for its end. Raises
        DemoError.
        """
        quiet = self._becomes_quiet()
        struck = self._cause.strike(self._scene)
        self._began = time.monotonic()
        with acting(struck):
            alert = self._first(FIRES_SECONDS)
            fired_after = self._seconds() if alert else None
            look = self._look_until_said()
            lasted = self._received() is not None
            acts = time.monotonic()
        return Sighting(
            quiet_before=quiet,
            look=look,
            fired_after=fired_after,
            lasted=lasted,
            ended_after=self._wait_end(acts) if alert else None,
            labels=alert["labels"] if alert else {},
            summary=alert["annotations"]["summary"] if alert else "",
            runbook_url=alert["annotations"]["runbook_url"] if alert else "",
        )

    def _becomes_quiet(self) -> bool:
        """Whether the alert is neither pending nor firing once all is prepared. What earlier causes
        have left is waited for.
        """
        self._cause.prepare(self._scene)
        with contextlib.suppress(StoryError):
            wait_for("quiet", lambda: self._active() == set(), QUIET_SECONDS, every=1)
        active = self._active()
        return active is not None and self._cause.alert not in active

    def _active(self) -> set[str] | None:
        """The names of all alerts that are pending or firing; None while a query fails, as of a
        server that is overloaded.
        """
        with contextlib.suppress(*FAILURES):
            return self._scene.active()
        return None

    def _first(self, seconds: float) -> Json | None:
        """The alert, as soon as Alertmanager has it; None when it does not come in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (found := self._received()) is not None:
                return found
            time.sleep(EVERY_SECONDS)
        return None

    def _received(self) -> Json | None:
        """The alert as Alertmanager has it now. While a query fails, nothing new is known."""
        with contextlib.suppress(*FAILURES):
            for alert in self._scene.manager.alerts():
                if alert["labels"]["alertname"] == self._cause.alert:
                    return alert
        return None

    def _look_until_said(self) -> Look:
        """What `why` says of the job, as soon as it says what it should, or after a while."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            look = self._look()
            if not unsaid(self._cause.answer, {}, look.why) or time.monotonic() > deadline:
                return look
            time.sleep(EVERY_SECONDS)

    def _look(self) -> Look:
        """Type both commands, in the order in which a page shows them."""
        job, seconds = self._cause.job, self._seconds()
        line = self._scene.type_in(f"kubectl get trainingjob {job}")[1]
        code, why = self._scene.type_in(f"kubectl trainingjob why {job}")
        return Look(seconds, why, code, line)

    def _wait_end(self, since: float) -> float | None:
        """Seconds from then on until the alert has ended; None when it does not in time."""
        with contextlib.suppress(StoryError):
            wait_for("the end of the alert", self._has_ended, ENDS_SECONDS, every=EVERY_SECONDS)
            return time.monotonic() - since
        return None

    def _has_ended(self) -> bool:
        """Whether the alert is neither pending nor firing any more."""
        active = self._active()
        return active is not None and self._cause.alert not in active

    def _seconds(self) -> float:
        return time.monotonic() - self._began


@contextlib.contextmanager
def acting(struck: Struck) -> Iterator[None]:
    """Inside, the cause lasts; it is taken away at the end, whatever happens."""
    try:
        yield
    finally:
        struck.act()
