"""`kubectl_complete-trainingjob`: kubectl runs it for `kubectl trainingjob <TAB>`.

Its arguments are the words typed so far, the last one being completed. It prints one candidate a
line, then a line with the directive of cobra.
"""

from __future__ import annotations

import sys

_NO_FILES, _FILES = ":4", ":0"
"""Whether the shell shall offer files too."""


def main() -> None:
    """Print the candidates. Never fails: its output goes into the line that somebody types."""
    from click.shell_completion import ShellComplete

    from regroup.cli.kubectl_trainingjob import trainingjob

    *words, typed = sys.argv[1:] or [""]
    found = ShellComplete(trainingjob, {}, "kubectl trainingjob", "").get_completions(words, typed)
    for item in found:
        if item.type == "plain":
            print(item.value if not item.help else f"{item.value}\t{item.help}")
    print(_FILES if any(item.type in ("file", "dir") for item in found) else _NO_FILES)
