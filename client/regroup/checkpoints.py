"""`regroup checkpoint`: handed to the training side, which knows how checkpoints lie on a volume.

In a process of its own: the client imports neither torch nor the trainer's code.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import click

_MODULE = "regroup_trainer.checkpoint"
_NEEDED = "xxhash"
"""A package of the extra that comes with the trainer."""


@click.command(
    "checkpoint", context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def checkpoint(arguments: tuple[str, ...]) -> None:
    """List, verify, export and prune the checkpoints of a job."""
    if importlib.util.find_spec(_NEEDED) is None:
        raise click.ClickException("checkpoints need the trainer's packages: pip install 'regroup[trainer]'")
    sys.exit(subprocess.run([sys.executable, "-m", _MODULE, *arguments], check=False).returncode)
