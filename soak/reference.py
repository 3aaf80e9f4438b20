"""The losses of an undisturbed run, which all jobs of a soak are compared with. They are cached."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from soak import records
from soak.jobs import undisturbed
from soak.records import Line
from soak.replay import replay
from soak.site import PROGRAMS_FOLDER, Job, Site
from soak.waiting import until
from tools.cache import cache_folder

ROOT = Path(__file__).resolve().parent.parent
NAME = "undisturbed"
COMPUTING_ROOMS = ("models", "data", "step", "parallel", "rank")
"""What losses depend on. Rooms that only move or keep a state leave an undisturbed run alone."""
STALLED_SECONDS = 120.0
MARGIN = 1.5
"""The run makes so many times the steps that are needed now: it cannot be continued later."""


@dataclass
class Reference:
    """The undisturbed run, made longer when a job has come further."""

    site: Site
    report: Callable[[str], None]

    def steps(self, program: str, least: int) -> Mapping[int, Line]:
        """At least the steps up to `least`. Raises RuntimeError when the run was disturbed."""
        file = cache_file(program)
        known = load(file)
        if max(known, default=0) < least:
            self.report(f"the undisturbed run makes {least} steps")
            known = self._run(program, int(least * MARGIN))
            save(file, known)
        return known

    def _run(self, program: str, least: int) -> Mapping[int, Line]:
        job = self.site.start(undisturbed(f"{NAME}-{int(time.time())}", program))
        seen, last = time.monotonic(), 0
        while last < least:
            time.sleep(1)
            folder = job.folder()
            step = (records.newest_step(folder) if folder else None) or 0
            seen, last = (time.monotonic(), step) if step > last else (seen, last)
            if time.monotonic() - seen > STALLED_SECONDS:
                raise RuntimeError(f"{job.name} makes no progress at step {last}")
        return self._end(job)

    def _end(self, job: Job) -> Mapping[int, Line]:
        job.suspend()
        folder = job.folder()
        assert folder is not None
        found = replay(records.read(folder))
        job.delete()
        until(lambda: not job.pods("worker"), 30)
        if found.mismatches or found.lost:
            raise RuntimeError(f"{job.name} was disturbed: {found.mismatches or found.lost}")
        return found.steps


def cache_file(program: str) -> Path:
    """Where the run with this program, its settings, and this code that computes is cached."""
    trainer = ROOT / "trainer" / "regroup_trainer"
    folders = [PROGRAMS_FOLDER, *(trainer / room for room in COMPUTING_ROOMS)]
    sources = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    texts = [path.read_text() for path in (*sources, ROOT / "requirements" / "trainer.txt")]
    inputs = json.dumps([undisturbed(NAME, program), texts])
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    return cache_folder() / "soak" / f"{NAME}-{program}-{key}.json"


def kept_file(folder: Path, program: str) -> Path:
    """Where a seed keeps the run with this program."""
    return folder / f"{NAME}-{program}.json"


def load_kept(folder: Path) -> Mapping[str, Mapping[int, Line]]:
    """Program -> steps, of all that a seed has kept."""
    paths = folder.glob(f"{NAME}-*.json")
    return {path.stem.removeprefix(f"{NAME}-"): load(path) for path in paths}


def load(file: Path) -> Mapping[int, Line]:
    """The cached steps; empty when there are none."""
    found = json.loads(file.read_text()) if file.exists() else []
    lines = (Line(**{**one, "generation": tuple(one["generation"])}) for one in found)
    return {line.step: line for line in lines}


def save(file: Path, steps: Mapping[int, Line]) -> None:
    """Write them atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(line) for line in steps.values()]))
    unfinished.rename(file)
