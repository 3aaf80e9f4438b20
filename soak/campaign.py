"""A soak: episodes one after another, each fault logged before anything is judged."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soak import records, reference, watch
from soak.aim import Aim, Missed, Struck
from soak.checker import Verdict, judge
from soak.draw import Episode, Fault
from soak.evidence import STUCK_SECONDS, STUCK_SECONDS_TORCHRUN, Evidence, Hit, Seen, keep
from soak.faults import strike
from soak.jobs import (
    CHECKPOINT_STEPS,
    MIN_REPLICAS,
    SHAPES,
    SNAPSHOT_STEPS,
    TORCHRUN_STEPS,
    manifest,
)
from soak.kinds import FAULTS, JOBS
from soak.reference import Reference
from soak.replay import replay
from soak.site import UNREACHABLE, Job, Site
from soak.waiting import until
from soak.watch import Watch

START_SECONDS = 240.0
WHOLE_SECONDS = 120.0
"""So long a fault waits for the end of the recovery from the one before."""
REPAIR_SECONDS = 300.0
SETTLED_SECONDS = 4.0
"""Longer than a lost member, and the status of it, take."""
TRIES = 3
"""So often a fault that finds no victim, or whose proof fails, is tried: the job may just move."""
LAST_SECONDS = 10.0
"""A job trains so long after its last fault."""
KINDS = {kind.name: kind for kind in FAULTS}
Places = Mapping[str, Mapping[int, tuple[str, str]]]
"""By job and rank: pod and node of those that train."""
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
    missed: list[dict[str, Any]] = field(default_factory=list)
    """Those that did not strike, and why."""
    verdicts: list[Verdict] = field(default_factory=list)
    hits: list[tuple[str, Hit]] = field(default_factory=list)
    """Job, and which of its ranks a fault has hit."""
    excused: list[tuple[str, float, float]] = field(default_factory=list)
    """Job, and from when to when nobody could expect steps of it: seconds since the epoch."""
    refusals: list[tuple[str, float, float]] = field(default_factory=list)
    """Job, and from when to when its volume took no files: seconds since the epoch."""
    tried: list[tuple[str, str]] = field(default_factory=list)
    """Job, and the kind of a fault that was tried on it."""

    def run(self, episodes: Sequence[Episode], deadline: float) -> None:
        """Run episodes until the monotonic clock shows `deadline`; one that has begun is ended."""
        for number, episode in enumerate(episodes, 1):
            if time.monotonic() > deadline:
                self.report(f"out of time before episode {number} of {len(episodes)}")
                return
            self._episode(number, episode, deadline)

    def _episode(self, number: int, episode: Episode, deadline: float) -> None:
        names = [f"e{number}-{place}-{kind}" for place, kind in enumerate(episode.jobs)]
        described = zip(names, episode.jobs, felt_by_jobs(episode), strict=True)
        jobs = tuple(self.site.start(manifest(*one)) for one in described)
        self.report(f"episode {number}: {', '.join(names)}")
        with Watch(self.site, jobs) as seen:
            self._wait_until_whole(jobs, START_SECONDS)
            for fault in episode.faults:
                self._try(jobs, fault, seen, deadline)
            self._wait_until_whole(jobs)
            time.sleep(LAST_SECONDS)
        self._judge(jobs, episode.jobs, seen)
        self.struck += self.unjudged
        self.unjudged = []

    def _try(self, jobs: tuple[Job, ...], fault: Fault, seen: Watch, deadline: float) -> None:
        """Until it strikes."""
        for _ in range(TRIES):
            seen.raise_error()
            if time.monotonic() > deadline or self._fault(jobs, fault, seen):
                return

    def _fault(self, jobs: tuple[Job, ...], fault: Fault, seen: Watch) -> bool:
        """Whether it struck."""
        time.sleep(rest_of_pause(fault.pause, self._wait_until_whole(jobs)))
        job, kind = jobs[fault.job], KINDS[fault.kind]
        felt = jobs if kind.everywhere else (job,)
        self.tried += [(one.name, fault.kind) for one in felt]
        entry = {"entry": "fault", **asdict(fault), "job": job.name, "time": time.time()}
        places = {one.name: _places(one) for one in jobs}
        for one in jobs:
            seen.look_at_commits(one)
        try:
            struck = strike(Aim(self.site, job, fault.choice), fault)
        except (Missed, LookupError, *UNREACHABLE) as error:
            self.missed.append({**entry, "reason": _reason(error)})
            self._write(self.missed[-1])
            self.report(f"fault {fault.number} {fault.kind} missed: {_reason(error)}")
            if isinstance(error, Missed):
                self._note_hits(entry["time"], error, places)
            self._repair()
            return False
        entry["proof"] = struck.proof
        self._write(entry)
        self.report(f"fault {fault.number} {fault.kind} on {job.name}: {struck.proof}")
        self.unjudged.append(entry)
        self._note_hits(entry["time"], struck, places)
        time.sleep(fault.seconds)
        try:
            struck.undo()
        except (Missed, *UNREACHABLE) as error:
            self._write({"entry": "undo", "number": fault.number, "failed": str(error)})
            self.report(f"fault {fault.number} {fault.kind} could not be undone: {error}")
            self._repair()
        if kind.halts:
            self.excused += [(one.name, entry["time"], time.time()) for one in felt]
        if kind.refuses:
            self.refusals.append((job.name, entry["time"], time.time()))
        self._write({"entry": "memory", "samples": watch.memory(self.site, jobs, fault.number)})
        return True

    def _repair(self) -> None:
        """What a fault has left away would have all later ones miss."""
        if not until(self.site.repair, REPAIR_SECONDS, 1.0):
            self.report(f"the cluster is not whole after {REPAIR_SECONDS:.0f} s")

    def _note_hits(self, moment: float, victims: Struck | Missed, places: Places) -> None:
        for name, found in places.items():
            self.hits.append((name, _hit(moment, victims, found)))

    def _wait_until_whole(self, jobs: tuple[Job, ...], seconds: float = WHOLE_SECONDS) -> bool:
        found = until(lambda: are_whole(jobs), seconds, 0.5)
        if not found:
            self.report(f"not whole after {seconds:.0f} s: {self._messages(jobs)}")
        return found

    def _messages(self, jobs: tuple[Job, ...]) -> str:
        found = []
        with contextlib.suppress(*UNREACHABLE):
            found = [f"{job.name}: {job.status().get('message')}" for job in jobs]
        return "; ".join(found) or "nobody answers"

    def _judge(self, jobs: tuple[Job, ...], kinds: Sequence[str], seen: Watch) -> None:
        suspended = {job.name: job.suspend() for job in jobs}  # the undisturbed run takes long
        for job, kind in zip(jobs, kinds, strict=True):
            noted = self._noted(job, kind, seen, suspended[job.name])
            folder, kept = job.folder(), self.log.with_suffix("") / job.name
            keep(noted, kept)
            for part in ("lineage", "history"):
                if folder and (folder / part).is_dir():
                    shutil.copytree(folder / part, kept / part, dirs_exist_ok=True)
            evidence = self._evidence(noted, records.read(kept))
            self._note(judge(evidence), evidence)
            job.delete()

    def _noted(self, job: Job, kind: str, seen: Watch, suspended: bool) -> Seen:
        status = job.status()
        seen.note(job, status)
        return Seen(
            job=job.name,
            kind=kind,
            program=SHAPES[kind].program,
            copy_size=COPY_SIZES[kind],
            snapshot_steps=SNAPSHOT_STEPS,
            checkpoint_steps=TORCHRUN_STEPS if job.is_torchrun else CHECKPOINT_STEPS,
            status=status,
            recoveries=tuple(seen.recoveries[job.name].values()),
            samples=tuple(seen.samples[job.name]),
            commits=None if job.is_torchrun else tuple(seen.commits[job.name]),
            kept=tuple(seen.kept[job.name]),
            looks=tuple(seen.looks[job.name]),
            min_replicas=MIN_REPLICAS,
            excused=tuple((a, b) for name, a, b in self.excused if name == job.name),
            refusals=tuple((a, b) for name, a, b in self.refusals if name == job.name),
            hits=tuple(hit for name, hit in self.hits if name == job.name),
            faults=tuple(tried for name, tried in self.tried if name == job.name),
            duplicates=tuple(seen.duplicates[job.name]),
            stuck_seconds=STUCK_SECONDS_TORCHRUN if job.is_torchrun else STUCK_SECONDS,
            was_suspended=suspended,
            is_torchrun=job.is_torchrun,
        )

    def _evidence(self, seen: Seen, found: records.Records) -> Evidence:
        """With the undisturbed run, which is kept beside the jobs."""
        newest = max(replay(found).steps, default=0)
        steps = self.reference.steps(seen.program, newest)
        reference.save(reference.kept_file(self.log.with_suffix(""), seen.program), steps)
        return Evidence(**vars(seen), records=found, reference=steps)

    def _note(self, verdict: Verdict, evidence: Evidence) -> None:
        self.verdicts.append(verdict)
        said = verdict.findings
        self._write(
            {
                "entry": "verdict",
                **said,
                "status": evidence.status,
                "recoveries": list(evidence.recoveries),
            }
        )
        self.report(f"{verdict}; {len(evidence.recoveries)} recoveries")

    def _write(self, entry: dict[str, Any]) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def felt_by_jobs(episode: Episode) -> list[list[str]]:
    """For each job of an episode, the kinds of faults that it is to feel."""
    return [
        [
            fault.kind
            for fault in episode.faults
            if fault.job == place or KINDS[fault.kind].everywhere
        ]
        for place in range(len(episode.jobs))
    ]


def rest_of_pause(pause: float, whole: bool) -> float:
    """What is left of the pause before a fault: jobs that are whole have been so for a while."""
    return max(0.0, pause - SETTLED_SECONDS) if whole else pause


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


def _reason(error: Exception) -> str:
    """Why a fault did not strike; a KeyError alone says too little."""
    return str(error) if isinstance(error, Missed) else f"{type(error).__name__}: {error}"


def _hit(moment: float, victims: Struck | Missed, places: Mapping[int, tuple[str, str]]) -> Hit:
    """Who of those that trained, by rank with pod and node, is among the victims."""
    hit = {
        rank: pod
        for rank, (pod, node) in places.items()
        if pod in victims.pods or node in victims.nodes
    }
    return Hit(moment, frozenset(hit), len(places), frozenset(hit.values()))


def _places(job: Job) -> dict[int, tuple[str, str]]:
    """Rank -> pod and node of those that train; empty while nobody can be asked."""
    with contextlib.suppress(*UNREACHABLE):
        return {
            rank: (pod["metadata"]["name"], pod["spec"]["nodeName"]) for rank, pod in job.workers()
        }
    return {}
