"""`regroup checkpoint`: runs the trainer's command, which knows the layout of checkpoints.

It runs in another process, because the client imports neither torch nor the trainer's code.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import click

_MODULE = "regroup_trainer.checkpoint"
_NEEDED = "xxhash"
"""A package that only the trainer's extra installs."""


@click.command(
    "checkpoint",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def checkpoint(arguments: tuple[str, ...]) -> None:
    """List, verify, export and prune the checkpoints of a job."""
    if importlib.util.find_spec(_NEEDED) is None:
        raise click.ClickException(
            "checkpoints need the trainer's packages: pip install 'regroup[trainer]'"
        )
    sys.exit(subprocess.run([sys.executable, "-m", _MODULE, *arguments], check=False).returncode)
