"""What happens when loss or gradients are not finite: the update is skipped, or the run is stopped.

All ranks learn the summed loss and norm from the commit, so they decide the same at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regroup_trainer.errors import NonFiniteError

MOST_IN_A_ROW = 10
"""So many skipped updates in a row stop the run: parameters that do not change give no better
loss.
"""


@dataclass
class Finiteness:
    """Counts the steps of one generation whose update was skipped."""

    policy: Literal["skip", "stop"]
    skipped: int = 0
    """The number of skipped updates."""
    _in_a_row: int = 0

    def note(self, step: int, updated: bool) -> None:
        """Take note of step number `step`. Raises NonFiniteError when the run has to stop."""
        self._in_a_row = 0 if updated else self._in_a_row + 1
        self.skipped += not updated
        if not updated and self.policy == "stop":
            raise NonFiniteError(
                f"step {step}: the loss or its gradients are not finite, and training.nonFinite is "
                "'stop': lower the "
                f"learning rate, look at the samples of this step, or skip such steps"
            )
        if self._in_a_row >= MOST_IN_A_ROW:
            raise NonFiniteError(
                f"steps {step - MOST_IN_A_ROW + 1} to {step}: the loss or its gradients are not "
                "finite in "
                f"{MOST_IN_A_ROW} steps in a row: lower the learning rate, or resume from an "
                "earlier checkpoint"
            )
