"""The budget of restarts after application failures, and the pauses between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.backoff import backoff_seconds
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.exit_codes import HOPELESS_EXIT_CODES


@dataclass
class RestartBackoff:
    """Counts the restarts in a row that brought no step forward."""

    fruitless: int = 0
    best_step: int = 0
    """Highest step committed before the last failure."""

    def pause(self, step: int, desired: Desired) -> float:
        """Count a failure at `step`; returns the seconds to wait before the next generation."""
        self.fruitless = 1 if step > self.best_step else self.fruitless + 1
        self.best_step = max(self.best_step, step)
        return backoff_seconds(self.fruitless, desired.backoff_seconds, desired.max_backoff_seconds)


def refusal(end: RankExit, used: int, desired: Desired) -> str | None:
    """Why the job is not restarted after `used` counted restarts; None when it is."""
    if end.exit_code in HOPELESS_EXIT_CODES:
        why = HOPELESS_EXIT_CODES[end.exit_code]
        return f"exit code {end.exit_code} ({why}) is not worth another try"
    if 0 <= desired.max_restarts <= used:
        budget = f"the budget of {desired.max_restarts} restarts is used up"
        return f"{budget} (restartPolicy.maxRestarts)"
    return None


def describe(end: RankExit, pod: str) -> str:
    """One sentence on the end of a rank, with the last line of its traceback."""
    how = {"oom": "ran out of memory and was killed", "signal": f"was ended by signal {end.signal}"}
    what = how.get(end.cause, f"ended with exit code {end.exit_code}")
    last_line = end.message.strip().rsplit("\n", 1)[-1]
    return f"rank {end.rank} on {pod} {what}" + (f": {last_line}" if last_line else "")
