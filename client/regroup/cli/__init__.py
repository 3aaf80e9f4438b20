"""The `regroup` command."""

from regroup.cli.command_line import main

__all__ = ["main"]
