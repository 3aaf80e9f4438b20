"""What would lose checkpoints of the Trainer is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.for_transformers import TransformersRecovery, saves_directory


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_dir": "elsewhere"}, "elsewhere is not where TransformersRecovery looks"),
        ({"save_only_model": True}, "save_only_model: true leaves out what a resumed run needs"),
        ({"save_total_limit": 2}, "save_total_limit: 2 deletes a checkpoint before the next one"),
    ],
)
def test_arguments_that_lose_checkpoints_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    arguments = TrainingArguments(
        **{"output_dir": str(saves_directory()), "use_cpu": True, "report_to": [], **changes}
    )
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        TransformersRecovery().on_train_begin(arguments, TrainerState(), TrainerControl())
