"""Debian's Chromium for tests. It says why it ended, and another one is started after that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.programs import chromium
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, BrowserType

SECONDS = 120
EXIT_SECONDS = 10
_STARTER = """\
#!/bin/sh
"{program}" "$@" 2>>"{folder}/stderr" &
echo $! >"{folder}/pid"
wait $!
echo "exit code $?" >>"{folder}/stderr"
touch "{folder}/ended"
"""
_SHOWN_CHARACTERS = 2000


class Chromium:
    """One browser at a time, by Playwright."""

    def __init__(self, kind: BrowserType, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._browser: Browser | None = None
        self.started = 0
        """Browsers so far."""

    @contextmanager
    def new_context(self, **options: Any) -> Iterator[BrowserContext]:
        """A context of a browser that runs. Raises AssertionError with what the browser wrote, and
        its exit code, where it ends meanwhile.
        """
        browser = self._running()
        try:
            with browser.new_context(**options) as context:
                yield context
        except Exception as error:
            if browser.is_connected():
                raise
            raise AssertionError(f"the browser has ended: {self._last_words()}") from error

    def _last_words(self) -> str:
        """The end of what the newest browser wrote, which has ended, and its exit code. A starter
        that was killed too writes none.
        """
        with suppress(AssertionError):
            wait_until("its exit code", (self._place / "ended").exists, EXIT_SECONDS)
        return (self._place / "stderr").read_text(errors="replace")[-_SHOWN_CHARACTERS:]

    def kill(self) -> None:
        """End the browser as the kernel does where memory is short."""
        os.kill(int((self._place / "pid").read_text()), signal.SIGKILL)

    def close(self) -> None:
        """End the browser."""
        if self._browser is not None:
            self._browser.close()

    @property
    def _place(self) -> Path:
        return self._folder / str(self.started)

    def _running(self) -> Browser:
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        if self._browser is not None:
            print(f"another browser is started, since one has ended: {self._last_words()}")
        self.started += 1
        self._place.mkdir()
        starter = self._place / "chromium"
        starter.write_text(_STARTER.format(program=chromium(), folder=self._place))
        starter.chmod(0o755)
        self._browser = self._kind.launch(
            executable_path=starter, args=["--no-sandbox"], timeout=SECONDS * 1000
        )
        return self._browser
