"""The runs of this machine: the folders of `regroup run`."""

from __future__ import annotations

import itertools
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.quantities import count
from regroup.local.checkpoint_list import MODULE, list_command, read_list
from regroup.local.display import without_escapes
from regroup.local.log_lines import OF_A_RANK
from regroup.local.record_file import RECORD_NAME, read_record, read_regular
from regroup.local.run_lock import LOCK_NAME, is_held
from regroup.web_page.job_source import (
    CheckpointView,
    JobView,
    LogTail,
    NoSuchJobError,
    SourceError,
)
from regroup.web_page.local_record import local_view
from regroup.web_page.page_data import MOST_LINES, last_lines
from regroup_trainer.protocol.extras import OF_CHECKPOINTS, missing_extra
from regroup_trainer.protocol.job_status import SERIES_FILE, SERIES_PATH, Series, SeriesPoint
from regroup_trainer.protocol.lineage_files import CHECKPOINTS_FOLDER

MOST_FOLDERS = 1000
"""Runs that are shown."""
MOST_FILES = 64
"""Logs that are read of a run, the newest."""
TAIL_BYTES = 256 * 1024
"""What is read of each."""
MOST_BYTES = 4 * 1024 * 1024
"""Of a series."""
ANSWER_SECONDS = 2.0
LIST_SECONDS = 60.0
"""What the trainer's command may take to list checkpoints."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LocalSource:
    """The runs in the folders below one folder, or that folder itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.title = f"Runs in {self._folder}"
        self._known: dict[str, tuple[object, JobView]] = {}
        """Name -> what the view was made of, and the view: most runs have ended."""

    def jobs(self) -> dict[str, JobRecord]:
        """By the names of their folders. The title says how many older ones are left out."""
        runs = self._runs()
        folders, left_out = _newest(runs), max(0, len(runs) - MOST_FOLDERS)
        older = f", without {count(left_out, 'older one', 'older ones')}" if left_out else ""
        self.title = f"Runs in {self._folder}{older}"
        self._known = {name: known for name, known in self._known.items() if name in folders}
        return {name: self._view(name, path).record for name, path in folders.items()}

    def view(self, identifier: str) -> JobView:
        """From the record that the run writes each second."""
        return self._view(identifier, self._path(identifier))

    def series(self, identifier: str) -> Sequence[SeriesPoint]:
        """From the coordinator while it runs, else as it was kept in the folder."""
        path = self._path(identifier)
        found = read_record(path)
        text = _live_series(found.port) if found and is_held(path) else b""
        text = text or read_regular(path / SERIES_FILE, MOST_BYTES)
        try:
            return Series.model_validate_json(text).points if text else ()
        except ValueError:
            raise SourceError(f"{path / SERIES_FILE} cannot be read: use its release") from None

    def kept_series(self, identifier: str) -> Sequence[SeriesPoint]:
        """No more than `series`, which reads the folder."""
        return self.series(identifier)

    def checkpoints(self, identifier: str) -> CheckpointView:
        """As `regroup checkpoint list` shows them."""
        path = self._path(identifier)
        if not (path / CHECKPOINTS_FOLDER).is_dir():
            return CheckpointView()  # of a script that saves by itself, and before the first
        if (missing := missing_extra("trainer", OF_CHECKPOINTS)) is not None:
            raise SourceError(missing)
        words = [sys.executable, "-m", MODULE, *list_command(str(path))]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, timeout=LIST_SECONDS
            )
            return CheckpointView(read_list(done.stdout))
        except (subprocess.SubprocessError, ValueError) as error:
            reason = " ".join(str(getattr(error, "stderr", "") or error).split())
            raise SourceError(f"the checkpoints cannot be listed: {reason}") from None

    def logs(self, identifier: str, rank: int | None) -> LogTail:
        """An equal share of each worker's newest log."""
        begin = "rank " if rank is None else f"rank {rank}: "
        found = [p for p in (self._path(identifier) / "logs").glob("*") if p.is_file()]
        files = sorted(found, key=_written)[-MOST_FILES:]
        tails = [
            [without_escapes(line) for line in _tail(file) if _is_of(line, begin)] for file in files
        ]
        filled = [tail for tail in tails if tail]
        share = max(1, MOST_LINES // max(1, len(filled)))
        lines = itertools.chain.from_iterable(last_lines(tail, share) for tail in filled)
        left_out = len(found) - len(files)
        return LogTail([*lines], f"{left_out} older logs are left out" if left_out else "")

    def _view(self, name: str, path: Path) -> JobView:
        held = is_held(path)  # before the record: a run that ends in between has written it by then
        stamp = held, _stamp(path / RECORD_NAME)
        former, view = self._known.get(name, (None, None))
        if view is None or former != stamp:
            view = _read_view(name, path, is_held=held)
            self._known[name] = stamp, view
        return view

    def _path(self, identifier: str) -> Path:
        """Never a path that was asked for: one that was found."""
        path = _newest(self._runs()).get(identifier)
        if path is None:
            raise NoSuchJobError(f"{self._folder} has no run {identifier!r}: it was removed?")
        return path

    def _runs(self) -> list[Path]:
        """The folders of all runs."""
        if _is_run(self._folder):
            return [self._folder]
        try:
            return [path for path in self._folder.iterdir() if _is_run(path)]
        except FileNotFoundError:
            return []  # the first run makes it
        except OSError as error:
            raise SourceError(f"{self._folder} cannot be read: {error.strerror}") from None


def _newest(runs: Sequence[Path]) -> dict[str, Path]:
    """The newest runs, by the names of their folders."""
    return {path.name: path for path in sorted(runs, key=_written)[-MOST_FOLDERS:]}


def _is_run(path: Path) -> bool:
    """Names that no page can show are left out."""
    is_run = (path / LOCK_NAME).is_file() or (path / RECORD_NAME).is_file()
    return is_run and path.name.isprintable()


def _read_view(name: str, path: Path, *, is_held: bool) -> JobView:
    found = read_record(path)
    try:
        return local_view(name, found, is_held=is_held)
    except (ValueError, OverflowError, OSError):  # times that no clock has
        return local_view(name, None, is_held=is_held)


def _stamp(file: Path) -> object:
    """It differs when the file was replaced."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _tail(file: Path) -> list[str]:
    """The last whole lines of a log."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > TAIL_BYTES else lines


def _is_of(line: str, begin: str) -> bool:
    return line.startswith(begin) and OF_A_RANK.match(line) is not None


def _live_series(port: int) -> bytes:
    """What the coordinator on this port of loopback answers; empty where it does not."""
    if not 0 < port < 65536:
        return b""
    try:
        address = f"http://127.0.0.1:{port}{SERIES_PATH}"
        with _DIRECT.open(address, timeout=ANSWER_SECONDS) as answer:
            return bytes(answer.read(MOST_BYTES))
    except (OSError, ValueError):
        return b""
