"""`regroup checkpoint`: runs the trainer's command, which knows the layout of checkpoints.

It runs in another process, because the client imports neither torch nor the trainer's code.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click

from regroup_trainer.protocol.extras import OF_CHECKPOINTS, missing_extra

_MODULE = "regroup_trainer.checkpoint"


def require(modules: Sequence[str]) -> None:
    """Raises click.ClickException, with what to type, without these of the trainer's modules."""
    if (missing := missing_extra("trainer", modules)) is not None:
        raise click.ClickException(missing)


@click.command(
    "checkpoint",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def checkpoint(arguments: tuple[str, ...]) -> None:
    """List, verify, export and prune the checkpoints of a job."""
    require(OF_CHECKPOINTS)
    sys.exit(subprocess.run([sys.executable, "-m", _MODULE, *arguments], check=False).returncode)
