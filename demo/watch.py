"""Shows the progress of a job while the demo waits for an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from demo.job import Job
from demo.screen import Screen
from demo.waiting import wait_for

T = TypeVar("T")
STATUS_SECONDS = 1.0


class Watch:
    """Waits for events of one job. Shows its progress at every poll, and its phase
    once a second.
    """

    def __init__(self, job: Job, screen: Screen) -> None:
        self.job = job
        self.volume = job.volume()
        self.screen = screen
        self._phase = ""
        self._asked = 0.0

    def until(
        self, what: str, condition: Callable[[], T | None], seconds: float, every: float = 0.2
    ) -> T:
        """Wait for `condition` and show progress. Raises StoryError after `seconds` or when the job
        fails.
        """

        def poll() -> T | None:
            self.show()
            return condition()

        return wait_for(what, poll, seconds, every=every, hint=self.job.describe)

    def at_once(self, what: str, condition: Callable[[], T | None], seconds: float) -> T:
        """Wait for `condition` without showing progress. It is polled every 10 ms, so its time is
        precise.
        """
        return wait_for(what, condition, seconds, every=0.01, hint=self.job.describe)

    def show(self) -> None:
        """Show the current progress."""
        if time.monotonic() - self._asked > STATUS_SECONDS:
            self.job.condition("Complete")
            self._phase = str(self.job.status().get("phase", "-"))
            self._asked = time.monotonic()
        written = self.volume.last_step()
        facts = {"phase": self._phase}
        if written:
            loss = "-" if written.loss is None else f"{written.loss:.3f}"
            checkpoint = self.volume.newest_checkpoint()
            facts |= {
                "world size": str(written.world_size),
                "loss": loss,
                "generation": str(written.generation),
            }
            facts |= {"checkpoint": "-" if checkpoint is None else f"step {checkpoint}"}
        self.screen.progress(written.step if written else 0, self.job.total_steps, facts)
