"""`make try`: a demonstration of Regroup on this machine alone.

`regroup run` trains the same job twice with local processes: first undisturbed, then while the
coordinator and a worker are killed. The trial compares what both runs wrote to the volume, here a
folder.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from demo.checks import LOSS_DIFFERENCE
from demo.errors import DemoError, StoryError
from demo.facts import Losses, max_difference
from demo.job import SAMPLE
from demo.screen import Screen
from demo.volume import Volume
from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.checkpoint.layout import DataIdentity
from regroup_trainer.protocol.exit_codes import INTERRUPTED

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("build/try")
SUMMARY = "summary.json"
SHORTENED = "job.yaml"
"""Files in the folder of the trial."""
KILLED_WORKER = 0


@dataclass(frozen=True)
class Plan:
    """The job of the trial and the steps at which processes are killed."""

    job: Path = SAMPLE
    folder: Path = FOLDER
    """The folder below which the trial writes all its files."""
    steps: int = 300
    """Instead of those of the job."""
    coordinator_step: int = 90
    worker_step: int = 150


@dataclass(frozen=True)
class Run:
    """One run of the job, read from the volume and from the summary of `regroup run`."""

    committed: tuple[CommittedStep, ...]
    data: DataIdentity | None
    """The fingerprint of the data, and what else determines the order of samples."""
    problems: tuple[str, ...]
    """A sentence for each sample that was skipped or used twice."""
    coordinators: int
    """The number of coordinators of the job, the first included."""
    recoveries: tuple[dict[str, Any], ...]
    seconds: float

    @property
    def losses(self) -> Losses:
        """The loss of each step."""
        return tuple(step.loss for step in self.committed)

    @property
    def failures(self) -> tuple[dict[str, Any], ...]:
        """The recoveries after failures. The others follow a worker that joins."""
        return tuple(one for one in self.recoveries if one["cause"] != "resize")


@dataclass(frozen=True)
class Finding:
    """One result of the trial: a sentence and whether it holds."""

    sentence: str
    holds: bool


def main(plan: Plan) -> int:
    """Run the trial. Returns 0 when all findings hold, 1 when not, and 130 when it
    was interrupted.
    """
    screen = Screen()
    try:
        runs = play(plan, screen)
        found = findings(*runs, plan)
        text = json.dumps(summary(runs, found, screen.elapsed), indent=2)
        (plan.folder / SUMMARY).write_text(f"{text}\n")
    except KeyboardInterrupt:
        screen.report("Interrupted: `make try` starts from the beginning", "bold red")
        return INTERRUPTED
    except DemoError as error:
        screen.report(f"The trial failed: {error}", "bold red")
        return 1
    return conclude(runs, found, screen)


def play(plan: Plan, screen: Screen) -> tuple[Run, Run]:
    """The undisturbed run and the run with failures. Raises StoryError when one does
    not complete.
    """
    empty(plan.folder)
    shorten(plan)
    screen.title("Reference: three workers train a small GPT without failures")
    undisturbed = train(plan, "undisturbed", ())
    if undisturbed.failures:
        message = undisturbed.failures[0]["message"]
        raise StoryError(f"the undisturbed run was disturbed, try it again: {message}")
    screen.title("The same job, while the coordinator and a worker are killed")
    kills = (
        f"coordinator@step={plan.coordinator_step}",
        f"worker={KILLED_WORKER}@step={plan.worker_step}",
    )
    disturbed = train(plan, "disturbed", kills)
    require_same_data(undisturbed, disturbed)
    return undisturbed, disturbed


def empty(folder: Path) -> None:
    """Make the folder without what an earlier trial left. Raises StoryError."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise StoryError(
            f"cannot use the folder {folder} ({error.strerror}: {error.filename}): remove what is "
            "there, perhaps as another user who ran the trial before"
        ) from error


def shorten(plan: Plan) -> None:
    """Write the job with the steps of the plan to the trial's folder."""
    job = yaml.safe_load(plan.job.read_text())
    job["spec"]["trainer"]["training"]["steps"] = plan.steps
    (plan.folder / SHORTENED).write_text(yaml.safe_dump(job, sort_keys=False))


def require_same_data(undisturbed: Run, disturbed: Run) -> None:
    """Raises StoryError where the losses of the runs cannot be compared."""
    if disturbed.data != undisturbed.data:
        raise StoryError(
            f"the runs trained on different data ({undisturbed.data}, then {disturbed.data}): "
            "leave the files of spec.trainer.data as they are while the trial runs"
        )


def train(plan: Plan, name: str, kills: tuple[str, ...]) -> Run:
    """Train the job in its own folder. Raises StoryError when it does not complete."""
    folder, summary = plan.folder / name, plan.folder / f"{name}.json"
    options = [
        ["run", str(plan.folder / SHORTENED)],
        ["--directory", str(folder), "--summary", str(summary)],
        [option for kill in kills for option in ("--kill", kill)],
    ]
    print(
        "\n$ .venv/bin/regroup",
        " \\\n    ".join(map(shlex.join, filter(None, options))),
        flush=True,
    )
    start = time.monotonic()
    if code := exit_code(*itertools.chain(*options)):
        raise StoryError(f"`regroup run` ended with exit code {code}; its logs: {folder / 'logs'}")
    seconds = time.monotonic() - start
    volume = Volume(folder)
    return Run(
        committed=tuple(volume.committed()),
        data=volume.data(),
        problems=tuple(volume.audit()),
        coordinators=len({number.term for number in volume.announced()}),
        recoveries=tuple(json.loads(summary.read_text())["recoveries"]),
        seconds=seconds,
    )


def exit_code(*arguments: str) -> int:
    """The exit code of the command `regroup`.

    After an interrupt, waits until the command has ended and raises KeyboardInterrupt.
    """
    interrupted = False
    program = Path(sys.executable).with_name("regroup")
    with subprocess.Popen([str(program), *arguments], cwd=ROOT) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:  # the command also got the signal: it saves and ends
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def findings(undisturbed: Run, disturbed: Run, plan: Plan) -> list[Finding]:
    """The findings from the two runs, in the order of the failures."""
    return [
        coordinator_killed(disturbed, plan),
        worker_killed(disturbed),
        same_losses(undisturbed, disturbed),
    ]


def coordinator_killed(run: Run, plan: Plan) -> Finding:
    """The finding about the coordinator: the workers continued without it, and no generation ended
    from the step at which it was killed until the worker was killed.
    """
    reached = range(plan.coordinator_step, plan.worker_step + 1)
    steps = {step.step: step.generation for step in run.committed if step.step in reached}
    return Finding(
        "The coordinator was killed: the workers trained on, a new one took over.",
        run.coordinators == 2 and len(steps) == len(reached) and len(set(steps.values())) == 1,
    )


def worker_killed(run: Run) -> Finding:
    """The finding about the worker: the other workers continued without it."""
    node = f"local-{KILLED_WORKER}"
    found = next((one for one in run.failures if one["node"] == node), None)
    if found is None:
        return Finding(f"Worker {KILLED_WORKER} was killed, and the failure was detected.", False)
    lost = f"{found['lost_steps']} steps were lost" if found["lost_steps"] else "no step was lost"
    return Finding(
        f"Worker {KILLED_WORKER} was killed: the others trained on after "
        f"{found['down_seconds']:.1f} s, {lost}.",
        found["world_size_after"] == found["world_size_before"] - 1,
    )


def same_losses(undisturbed: Run, disturbed: Run) -> Finding:
    """The finding about the losses: the failures changed neither losses nor samples."""
    difference = max_difference(disturbed.losses, undisturbed.losses)
    problems = (*undisturbed.problems, *disturbed.problems)
    return Finding(
        f"Same loss at all {len(disturbed.committed)} steps (to {difference:.1e}), "
        f"{problems[0] if problems else 'no sample skipped or repeated'}.",
        difference <= LOSS_DIFFERENCE and not problems,
    )


def summary(runs: tuple[Run, Run], found: list[Finding], seconds: float) -> dict[str, Any]:
    """What the trial found, and the seconds of both runs and of all on so many cores."""
    undisturbed, disturbed, together = (round(t, 1) for t in (*(r.seconds for r in runs), seconds))
    return {
        "findings": {finding.sentence: finding.holds for finding in found},
        "seconds": {"undisturbed": undisturbed, "with failures": disturbed, "all": together},
        "cores": cores(),
    }


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def conclude(runs: tuple[Run, Run], found: list[Finding], screen: Screen) -> int:
    """Print the findings. Returns 0 when all hold, else 1."""
    screen.title("Results")
    for number, finding in enumerate(found, 1):
        style = "green" if finding.holds else "bold red"
        sentence = finding.sentence if finding.holds else f"FAILED: {finding.sentence}"
        screen.console.print(Text(f"{number}. {sentence}", style=style))
    first, second = (f"{run.seconds:.0f} s" for run in runs)
    times = f"Undisturbed run {first}, run with failures {second}, on {cores()} cores"
    screen.report(times, "dim")
    return 0 if all(finding.holds for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main(Plan()))
