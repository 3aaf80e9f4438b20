"""A soak: episodes one after another, each fault logged before anything is judged."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soak import records, watch
from soak.aim import Aim, Missed
from soak.checker import (
    STUCK_SECONDS,
    STUCK_SECONDS_TORCHRUN,
    Evidence,
    Hit,
    Memory,
    Verdict,
    judge,
)
from soak.draw import Episode, Fault
from soak.faults import strike
from soak.jobs import CHECKPOINT_STEPS, SHAPES, SNAPSHOT_STEPS, TORCHRUN_STEPS, manifest
from soak.kinds import JOBS
from soak.reference import Reference
from soak.replay import replay
from soak.site import UNREACHABLE, Job, Site
from soak.waiting import until
from soak.watch import Watch

START_SECONDS = 240.0
WHOLE_SECONDS = 120.0
"""So long a fault waits for the end of the recovery from the one before."""
SETTLED_SECONDS = 4.0
"""Longer than a lost member, and the status of it, take."""
LAST_SECONDS = 20.0
"""A job trains so long after its last fault."""
AWAY = {"volume-silent"}
"""Kinds of faults during which nobody can expect steps."""
COPY_SIZES = {kind.name: kind.copy_size for kind in JOBS}


@dataclass
class Campaign:
    """One seed on a cluster."""

    site: Site
    log: Path
    """A JSON object a line: faults, verdicts."""
    report: Callable[[str], None]
    reference: Reference
    struck: list[dict[str, Any]] = field(default_factory=list)
    """Those of episodes that were judged."""
    unjudged: list[dict[str, Any]] = field(default_factory=list)
    """Those of the episode under way."""
    missed: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    hits: list[tuple[str, Hit]] = field(default_factory=list)
    """Job, and which of its ranks a fault has hit."""
    excused: list[tuple[str, float, float]] = field(default_factory=list)
    """Job, and from when to when its volume did not answer: seconds since the epoch."""

    def run(self, episodes: Sequence[Episode], deadline: float) -> None:
        """Run episodes until the monotonic clock shows `deadline`; one that has begun is ended."""
        for number, episode in enumerate(episodes, 1):
            if time.monotonic() > deadline:
                self.report(f"out of time before episode {number} of {len(episodes)}")
                return
            self._episode(number, episode, deadline)

    def _episode(self, number: int, episode: Episode, deadline: float) -> None:
        names = [f"e{number}-{place}-{kind}" for place, kind in enumerate(episode.jobs)]
        described = zip(names, episode.jobs, strict=True)
        jobs = tuple(self.site.start(manifest(name, kind)) for name, kind in described)
        self.report(f"episode {number}: {', '.join(names)}")
        with Watch(self.site, jobs) as seen:
            self._wait_until_whole(jobs, START_SECONDS)
            for fault in episode.faults:
                if time.monotonic() > deadline:
                    break
                self._fault(jobs, fault)
            self._wait_until_whole(jobs)
            time.sleep(LAST_SECONDS)
        self._judge(jobs, episode.jobs, seen)
        self.struck += self.unjudged
        self.unjudged = []

    def _fault(self, jobs: tuple[Job, ...], fault: Fault) -> None:
        self._wait_until_whole(jobs)
        time.sleep(fault.pause)
        job = jobs[fault.job]
        entry = {"entry": "fault", **asdict(fault), "job": job.name, "time": time.time()}
        places = {one.name: _places(one) for one in jobs}
        try:
            struck = strike(Aim(self.site, job, fault.choice), fault)
        except (Missed, LookupError, *UNREACHABLE) as error:
            self.missed += 1
            self._write({**entry, "missed": str(error)})
            self.report(f"fault {fault.number} {fault.kind} missed: {error}")
            return
        entry["proof"] = struck.proof
        self._write(entry)
        self.report(f"fault {fault.number} {fault.kind} on {job.name}: {struck.proof}")
        self.unjudged.append(entry)
        for name, found in places.items():
            ranks = [
                r for r, (pod, node) in found.items() if pod in struck.pods or node == struck.node
            ]
            self.hits.append((name, Hit(entry["time"], frozenset(ranks), len(found))))
        time.sleep(fault.seconds)
        try:
            struck.undo()
        except (Missed, *UNREACHABLE) as error:
            self._write({"entry": "undo", "number": fault.number, "failed": str(error)})
            self.report(f"fault {fault.number} {fault.kind} could not be undone: {error}")
        if fault.kind in AWAY:
            self.excused.append((job.name, entry["time"], time.time()))
        memory = watch.memory(self.site, jobs, fault.number)
        self._write({"entry": "memory", "samples": memory})
        self.memory += memory

    def _wait_until_whole(self, jobs: tuple[Job, ...], seconds: float = WHOLE_SECONDS) -> None:
        if not until(lambda: are_whole(jobs), seconds, 0.5):
            self.report(f"not whole after {seconds:.0f} s: {self._messages(jobs)}")

    def _messages(self, jobs: tuple[Job, ...]) -> str:
        found = []
        with contextlib.suppress(*UNREACHABLE):
            found = [f"{job.name}: {job.status().get('message')}" for job in jobs]
        return "; ".join(found) or "nobody answers"

    def _judge(self, jobs: tuple[Job, ...], kinds: Sequence[str], seen: Watch) -> None:
        suspended = {job.name: job.suspend() for job in jobs}  # the undisturbed run takes long
        for job, kind in zip(jobs, kinds, strict=True):
            status = job.status()
            seen.note(job, status)
            folder = job.folder()
            found = records.read(folder) if folder else records.Records({}, {})
            shape, newest = SHAPES[kind], max(replay(found).steps, default=0)
            evidence = Evidence(
                job=job.name,
                kind=kind,
                copy_size=COPY_SIZES[kind],
                hits=[hit for name, hit in self.hits if name == job.name],
                snapshot_steps=SNAPSHOT_STEPS,
                checkpoint_steps=TORCHRUN_STEPS if job.is_torchrun else CHECKPOINT_STEPS,
                records=found,
                status=status,
                was_suspended=suspended[job.name],
                recoveries=tuple(seen.recoveries[job.name].values()),
                reference=self.reference.steps(shape.program, newest),
                samples=seen.samples[job.name],
                excused=[(a, b) for name, a, b in self.excused if name == job.name],
                duplicates=seen.duplicates[job.name],
                stuck_seconds=STUCK_SECONDS_TORCHRUN if job.is_torchrun else STUCK_SECONDS,
                status_shows_steps=not job.is_torchrun,
            )
            self._note(judge(evidence), evidence)
            self._keep(folder, job.name)
            job.delete()

    def _note(self, verdict: Verdict, evidence: Evidence) -> None:
        self.verdicts.append(verdict)
        said = {name: value for name, value in asdict(verdict).items() if value}
        self._write(
            {
                "entry": "verdict",
                **said,
                "status": evidence.status,
                "recoveries": list(evidence.recoveries),
            }
        )
        words = "clean" if verdict.is_clean else json.dumps(said)[:2000]
        self.report(
            f"{verdict.job}: {verdict.steps} steps, {verdict.compared} compared with the "
            f"undisturbed run, {len(evidence.recoveries)} recoveries: {words}"
        )

    def _keep(self, folder: Path | None, name: str) -> None:
        """The lineage and history of a job, beside the log."""
        for part in ("lineage", "history"):
            if folder and (folder / part).is_dir():
                target = self.log.parent / self.log.stem / name / part
                shutil.copytree(folder / part, target, dirs_exist_ok=True)

    def _write(self, entry: dict[str, Any]) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def are_whole(jobs: tuple[Job, ...]) -> bool:
    """Whether all workers of all jobs train for a while in one generation. A single look is not
    enough: for a moment after a fault, the status is still the one before it.
    """
    before = [job.training() for job in jobs]
    if None in before:
        return False
    time.sleep(SETTLED_SECONDS)
    pairs = zip(before, [job.training() for job in jobs], strict=True)
    return all(a and b and a[0] == b[0] and a[1] < b[1] for a, b in pairs)


def _places(job: Job) -> dict[int, tuple[str, str]]:
    """Rank -> pod and node of those that train; empty while nobody can be asked."""
    with contextlib.suppress(*UNREACHABLE):
        return {
            rank: (pod["metadata"]["name"], pod["spec"]["nodeName"]) for rank, pod in job.workers()
        }
    return {}
