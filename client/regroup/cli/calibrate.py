"""`regroup plan --calibrate`: runs the trainer's measurement of this machine.

It runs in another process, because the client imports neither torch nor the trainer's code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click
from pydantic import ValidationError

from regroup_trainer.protocol.calibration import Calibration
from regroup_trainer.protocol.extras import OF_TRAINER, missing_extra

_MODULE = "regroup_trainer.parallel.machine_speed"
_TIMEOUT_SECONDS = 600.0


def device() -> str:
    """What this machine's device is called; that takes as long as importing torch.

    Raises click.ClickException as `measure` does.
    """
    return _run("--device-only").strip()


def measure(model: dict[str, Any], sequence_length: int, ranks: int) -> Calibration:
    """Measure with the shapes of `model`, as in `trainer.model`, on up to `ranks` local devices.

    Raises click.ClickException with what to do when the machine cannot be measured.
    """
    options = {
        "--model": json.dumps(model),
        "--sequence-length": str(sequence_length),
        "--ranks": str(ranks),
    }
    return _read(_run(*(word for pair in options.items() for word in pair)))


def _run(*options: str) -> str:
    if (missing := missing_extra("trainer", OF_TRAINER)) is not None:
        raise click.ClickException(f"--calibrate: {missing}, or run it in a worker's image")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", _MODULE, *options],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"--calibrate: the measurement took more than {_TIMEOUT_SECONDS:.0f} s: plan without "
            "it, or measure a smaller --model"
        ) from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise click.ClickException(f"--calibrate: the measurement failed: {last}")
    return ended.stdout


def _read(output: str) -> Calibration:
    try:
        return Calibration.model_validate_json(output)
    except ValidationError:
        raise click.ClickException(
            f"--calibrate: cannot read what {_MODULE} printed: install regroup and "
            "regroup_trainer of the same release"
        ) from None
