"""The models that the built-in trainer can train."""

from __future__ import annotations

from collections.abc import Callable

from regroup_trainer.config import Dimensions
from regroup_trainer.models.gpt import GPT

MODELS: dict[str, Callable[[Dimensions], GPT]] = {"gpt": GPT}
"""model.name -> constructor; called on the meta device, so that only `initialize` allocates memory."""
