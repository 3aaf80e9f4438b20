"""Runs uv and prints how much it has fetched, and how long fetching and installing took.

uv's own progress bars need a terminal. Without one, it prints a line for each of two hundred
packages.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.progress import report

EVERY_SECONDS = 5.0
"""Seconds between two progress lines while packages are fetched."""
_GIGABYTES = {"KiB": 2**10 / 1e9, "MiB": 2**20 / 1e9, "GiB": 2**30 / 1e9}
_FETCHING = re.compile(r"Downloading (\S+) \(([\d.]+)(\wiB)\)")
_FETCHED = re.compile(r" *Downloaded (\S+)")
_DONE = re.compile(r"(Prepared|Installed) \d+ packages? in (.+)")
_UNIMPORTANT = re.compile(r"Using |Resolved |Audited |Building | *Built |Uninstalled | [+~-] ")


@dataclass
class UvProgress:
    """The state of uv, from its output so far."""

    sizes: dict[str, float] = field(default_factory=dict)
    """Package -> GB, for the larger packages that uv fetches."""
    fetched: set[str] = field(default_factory=set)
    times: dict[str, str] = field(default_factory=dict)
    """`Prepared` (fetched and unpacked) and `Installed` -> duration, as uv prints it."""

    def read(self, line: str) -> str:
        """Parse a line of uv. Returns the line if it is for the user: a warning or an error."""
        if match := _FETCHING.fullmatch(line):
            self.sizes[match[1]] = float(match[2]) * _GIGABYTES[match[3]]
        elif match := _FETCHED.fullmatch(line):
            self.fetched.add(match[1])
        elif match := _DONE.fullmatch(line):
            self.times[match[1]] = match[2]
        elif not _UNIMPORTANT.match(line):
            return line
        return ""

    def under_way(self) -> str:
        """The fetched and remaining GB. Empty while uv fetches nothing."""
        waiting = [name for name in self.sizes if name not in self.fetched]
        if not waiting or self.times:
            return ""
        total = sum(self.sizes.values())
        rest = sum(self.sizes[name] for name in waiting)
        waiting.sort(key=lambda name: -self.sizes[name])
        more = f" and {len(waiting) - 2} more" if len(waiting) > 2 else ""
        return (
            f"{total - rest:.1f} of {total:.1f} GB fetched; to come: {', '.join(waiting[:2])}{more}"
        )

    def summary(self) -> str:
        """How long fetching and installing took. Empty when there was nothing to do."""
        words = {"Prepared": "fetched", "Installed": "installed"}
        return ", ".join(f"{words[name]} in {took}" for name, took in self.times.items())


def run_with_progress(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Run a command of uv that installs packages. Returns its exit code."""
    progress, start = UvProgress(), time.monotonic()
    shown_at = start
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in lines(process.stderr.fileno()):
            if message := progress.read(line):
                report(message)
            now = time.monotonic()
            if now - shown_at >= EVERY_SECONDS and (news := progress.under_way()):
                shown_at = now
                report(f"    {news} ({now - start:.0f} s)")
    if summary := progress.summary():
        report(f"    {summary}")
    return process.returncode


def lines(descriptor: int) -> Iterator[str]:
    """Yield the lines of a pipe without their ends, and an empty line for each
    second without one.
    """
    rest = b""
    while True:
        if not select.select([descriptor], [], [], 1.0)[0]:
            yield ""
            continue
        read = os.read(descriptor, 2**16)
        *whole, rest = (rest + read).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        if not read:
            yield from filter(None, [rest.decode(errors="replace")])
            return
