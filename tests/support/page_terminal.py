"""A shell in which a test types what stands on a page for users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.documented_commands import commands
from tests.support.waiting import wait_until

SECONDS = 240.0
"""For any command: the machine may be busy."""


@dataclass(frozen=True)
class PageTerminal:
    """A shell in a folder. It finds the programs of the environment under test, and those of
    `programs`.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[Path, ...] = ()

    def type(
        self,
        *texts: str,
        changes: Mapping[str, str] | None = None,
        answers: str = "",
        seconds: float = SECONDS,
    ) -> str:
        """Type commands that stand on a page, in one shell; returns what they print.

        `changes` are other names for what the page has; `answers` is standard input. Raises
        AssertionError when a command fails.
        """
        code, output = self.try_to_type(*texts, changes=changes, answers=answers, seconds=seconds)
        assert code == 0, output
        return output

    def try_to_type(
        self,
        *texts: str,
        changes: Mapping[str, str] | None = None,
        answers: str = "",
        seconds: float = SECONDS,
    ) -> tuple[int, str]:
        """Type commands that may fail; returns exit code and output."""
        lines = typed("\n".join(map(on_a_page, texts)), changes or {})
        with subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", lines],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(answers, timeout=seconds)
            finally:
                if process.poll() is None:  # what it has started must not outlive the test
                    os.killpg(process.pid, signal.SIGKILL)
        print(f"$ {lines}\n{output}")
        return process.returncode, output

    @contextmanager
    def running(
        self,
        text: str,
        changes: Mapping[str, str] | None = None,
        end: signal.Signals = signal.SIGINT,
    ) -> Iterator[Callable[[str], str]]:
        """Type a command that goes on until somebody ends it, as this does in the end.

        Yields a function that waits until certain words are printed and returns all that is
        printed. Raises AssertionError when it ends by itself, or not when asked.
        """
        shown, line = self.folder / "shown", typed(on_a_page(text), changes or {})
        with shown.open("w") as output:
            process = subprocess.Popen(
                # As in a terminal: what a test starts may ignore Ctrl-C from the start.
                ["env", "--default-signal=INT", "bash", "-c", line],
                env=self._environment(),
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def until(words: str) -> str:
            def found() -> str | None:
                printed = shown.read_text()
                assert words in printed or process.poll() is None, f"it has ended: {printed}"
                return printed if words in printed else None

            return wait_until(f"{words!r} from {text}", found, seconds=SECONDS)

        try:
            yield until
            assert process.poll() is None, f"{text} has ended by itself: {shown.read_text()}"
            os.killpg(process.pid, end)
            process.wait(SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _environment(self) -> dict[str, str]:
        programs = (Path(sys.executable).parent, *self.programs)
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        return {**os.environ, "OMP_NUM_THREADS": "1", **self.variables, "PATH": path}


def on_a_page(text: str) -> str:
    """The text. Raises AssertionError where no page has such a command."""
    assert text in {command.text for command in commands()}, f"no page has {text!r}"
    return text


def typed(text: str, changes: Mapping[str, str]) -> str:
    """A text with other names. Raises AssertionError for a name that it does not have."""
    for of_page, own in changes.items():
        assert of_page in text, f"{of_page!r} is not in {text!r}"
        text = text.replace(of_page, own)
    return text
