"""What the real `accelerate launch` would give its ranks, without starting any."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence

import pytest

ELSEWHERE = ("MASTER_ADDR", "MASTER_PORT")
"""Where ranks meet: the job says that."""


def parser() -> argparse.ArgumentParser:
    """The parser of the library."""
    from accelerate.commands.launch import launch_command_parser  # type: ignore[import-untyped]

    made: argparse.ArgumentParser = launch_command_parser()
    return made


def library_variables(words: Sequence[str], patch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that the library adds for `accelerate launch WORDS train.py`.

    Without its default config file, and as if there were fp8 hardware and a module for it.
    """
    from accelerate.commands import launch  # type: ignore[import-untyped]
    from accelerate.utils import launch as environment  # type: ignore[import-untyped]

    patch.setattr(launch, "default_config_file", "/nonexistent")
    patch.setattr(environment, "is_fp8_available", lambda: True)
    patch.delenv("OMP_NUM_THREADS", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = parser().parse_args([*words, "train.py"])
        arguments, _, _ = launch._validate_launch_command(asked)
        if not arguments.cpu and (arguments.use_fsdp or arguments.multi_gpu):
            found = environment.prepare_multi_gpu_env(arguments)
        else:
            _, found = environment.prepare_simple_launcher_cmd_env(arguments)
    return {
        name: value
        for name, value in found.items()
        if os.environ.get(name) != value and name not in ELSEWHERE
    }
