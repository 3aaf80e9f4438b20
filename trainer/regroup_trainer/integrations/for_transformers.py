"""transformers' Trainer in a job: checkpoints that are whole or ignored, and a save before it has
to stop.

```python
recovery = TransformersRecovery()
trainer = Trainer(
    model,
    TrainingArguments(output_dir=saves_directory(), save_strategy="steps", save_steps=50),
    train_dataset=samples,
    callbacks=[recovery],
)
trainer.train(resume_from_checkpoint=recovery.newest())
```

The Trainer itself saves and loads. It restores the position in the data and the random numbers as
well. Under plain torchrun and without a launcher it does the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.joint_saves import JointSaves
from regroup_trainer.integrations.required_library import require
from regroup_trainer.integrations.stop_agreement import (
    STOPPED,
    StopAgreement,
    require_joined,
)
from regroup_trainer.integrations.whole_folders import saves_directory

LIBRARY, OLDEST = "transformers", "4.48"
try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError:
    require(LIBRARY, OLDEST)
    raise

_HOW_TO_JOIN = "make TrainingArguments first, on CPUs with use_cpu=True"
__all__ = ["TransformersRecovery", "saves_directory"]


class TransformersRecovery(TrainerCallback):
    """Makes the Trainer's checkpoints whole or ignored, and has it save and end upon SIGTERM.

    `every_seconds` saves by time, beside `save_steps`. `keep_last` checkpoints stay. Make it after
    the TrainingArguments, which join the ranks. Raises ConfigurationError for what would lose
    checkpoints.
    """

    def __init__(
        self,
        *,
        every_seconds: float | None = None,
        keep_last: int = 3,
    ) -> None:
        require(LIBRARY, OLDEST)
        self._saves = JointSaves(keep_last)
        self._every_seconds = every_seconds
        self._agreement: StopAgreement | None = None
        self._is_stopping = False

    def newest(self) -> str | None:
        """The newest whole checkpoint, which is the same on all ranks; None: there is none."""
        require_joined(_HOW_TO_JOIN)
        return self._saves.newest() or None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        """Delete what interrupted saves have left, and listen to SIGTERM."""
        require_joined(_HOW_TO_JOIN)
        _require_savable(args, self._saves.folders.directory)
        self._saves.start(state.global_step)
        self._agreement = StopAgreement(None, self._every_seconds, state.global_step)

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Agree with the other ranks whether to save and to stop here."""
        assert self._agreement is not None
        agreed = self._agreement.after(state.global_step, state.max_steps)
        self._is_stopping = agreed.stop
        control.should_save |= agreed.stop or agreed.save
        self._make_room(state, control)

    def on_epoch_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Make room for a save at the end of an epoch."""
        self._make_room(state, control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Make room for a save that comes if the model is the best one so far."""
        if self._agreement is not None and args.save_strategy == "best":
            self._make_room(state, TrainerControl(should_save=True))

    def _make_room(self, state: TrainerState, control: TrainerControl) -> None:
        """Have a save find no folder of its step; no state is saved twice."""
        control.should_save &= not self._saves.has(state.global_step)
        if control.should_save:
            self._saves.begin(state.global_step)

    def on_save(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        *_: Any,
        **__: Any,
    ) -> None:
        """Declare the checkpoint whole. Raises SystemExit after the last one before a stop."""
        best = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
        self._saves.publish(state.global_step, best)
        if self._is_stopping:
            raise SystemExit(STOPPED)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stop listening."""
        if self._agreement is not None:
            self._agreement.close()
            self._agreement = None


def _require_savable(args: TrainingArguments, directory: Path) -> None:
    output = Path(args.output_dir or "").absolute()
    if output != directory.absolute():
        raise ConfigurationError(
            f"output_dir: {output} is not where TransformersRecovery looks: give "
            f"output_dir=saves_directory(), which is {directory}"
        )
    if args.save_only_model:
        raise ConfigurationError(
            "save_only_model: true leaves out what a resumed run needs: leave it out"
        )
    if args.save_total_limit is not None:
        raise ConfigurationError(
            f"save_total_limit: {args.save_total_limit} deletes a checkpoint before the next one "
            "is whole: leave it out, and give TransformersRecovery(keep_last=...)"
        )
