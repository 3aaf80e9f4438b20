"""The budget of application restarts and the pauses between them: pure."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.contract import Desired, RankExit

HOPELESS_EXIT_CODES = {
    2: "an error that would come again",
    126: "the command cannot be executed",
    127: "the command was not found",
}
"""Exit codes that another try cannot mend: the job fails at once."""


@dataclass
class Restarts:
    """Application restarts in a row that brought no step forward."""

    fruitless: int = 0
    best_step: int = 0
    """Highest step committed before the last application failure."""

    def pause(self, step: int, desired: Desired) -> float:
        """Count a failure at `step`; seconds to wait before the next try: none the first time, then doubling."""
        self.fruitless = 1 if step > self.best_step else self.fruitless + 1
        self.best_step = max(self.best_step, step)
        if self.fruitless <= 1:
            return 0.0
        return float(min(desired.max_backoff_seconds, desired.backoff_seconds * 2.0 ** min(self.fruitless - 2, 30)))


def refusal(end: RankExit, used: int, desired: Desired) -> str | None:
    """Why there is no further try after `used` counted restarts; None when there is one."""
    if end.exit_code in HOPELESS_EXIT_CODES:
        return f"exit code {end.exit_code} ({HOPELESS_EXIT_CODES[end.exit_code]}) is not worth another try"
    if 0 <= desired.max_restarts <= used:
        return f"the budget of {desired.max_restarts} restarts is used up"
    return None


def describe(end: RankExit, pod: str) -> str:
    """One sentence on the end of a rank, with the end of its traceback."""
    how = {"oom": "ran out of memory and was killed", "signal": f"was ended by signal {end.signal}"}
    what = how.get(end.cause, f"ended with exit code {end.exit_code}")
    last_line = end.message.strip().rsplit("\n", 1)[-1]
    return f"rank {end.rank} on {pod} {what}" + (f": {last_line}" if last_line else "")
