"""The `regroup` command."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""As in `protocol.exit_codes`, whose import may be what a Ctrl-C interrupts."""


def main() -> None:
    """Run the command. Imports come after the first line that can catch a Ctrl-C."""
    try:
        from regroup.cli.command_line import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command()
