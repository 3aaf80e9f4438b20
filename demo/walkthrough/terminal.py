"""The shell of the user: what is typed in it goes into the transcript."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.errors import StoryError
from demo.screen import Screen
from demo.shell import type_line
from demo.walkthrough.documented import Documented
from demo.walkthrough.transcript import Transcript

SECONDS = 600.0
"""For any command: the machine may be busy."""
END_SECONDS = 30.0
"""For a command that serves, after Ctrl-C."""


@dataclass(frozen=True)
class Terminal:
    """A shell in a folder."""

    folder: Path
    environment: dict[str, str]
    transcript: Transcript
    screen: Screen

    def type(
        self, command: Documented, changes: dict[str, str] | None = None, more: str = ""
    ) -> str:
        """Type a command of a page. `more` is what the user adds. Returns what it printed.

        Raises StoryError when it fails.
        """
        return self.type_line(command.typed(changes) + more)

    def type_line(self, line: str) -> str:
        """Type a line that no page has. Raises StoryError when it fails."""
        self.screen.report(f"$ {line}")
        code, output = type_line(line, self.environment, SECONDS, self.folder)
        self.transcript.typed(line, output)
        self.screen.report(output.rstrip(), "dim")
        if code:
            raise StoryError(f"`{line}` failed with exit code {code}: {output}")
        return output

    @contextmanager
    def running(self, line: str) -> Iterator[str]:
        """Type a command that goes on until Ctrl-C. Yields its first line.

        Raises StoryError when it goes on after Ctrl-C.
        """
        self.screen.report(f"$ {line}")
        with subprocess.Popen(
            # As in a terminal: what a shell starts in the background ignores Ctrl-C from the start.
            ["env", "--default-signal=INT", "bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                first = process.stdout.readline() if process.stdout else ""
                self.transcript.typed(line, first)
                yield first
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise StoryError(f"`{line}` goes on after Ctrl-C") from error
