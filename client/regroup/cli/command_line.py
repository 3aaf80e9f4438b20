"""The `regroup` command: runs a TrainingJob on this machine, checks its file."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from regroup.cli.checkpoint_command import checkpoint, require
from regroup.cli.cluster_options import Verb
from regroup.cli.convert_command import convert
from regroup.cli.job_code import JobFile, job_in_folder, write_code
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.cli.plan_command import plan_command
from regroup.cli.ui_commands import ui
from regroup.cli.validate_command import find_problems, validate
from regroup.local.display import Display, without_escapes
from regroup.local.faults import EXAMPLES, Fault, never_injected, parse_fault
from regroup.local.interruption import play
from regroup.local.local_desired import local_desired, ranks_per_worker
from regroup.local.local_run import LocalRun
from regroup.local.run_folder import explain
from regroup.local.summary import sentence, summarize, write
from regroup.local.torchrun_play import play_torchrun, torchrun_wanted
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import user_script
from regroup_trainer.protocol.extras import OF_TRAINER
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.progress_pattern import NEEDS_RE2, has_re2

RUNS_FOLDER = Path("regroup-runs")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Commands(Verb, click.Group):
    """Commands in the order in which one meets them."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """As they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. Raises click.UsageError, which says where a verb of kubectl is."""
        elsewhere = trainingjob.commands.keys() - self.commands.keys()
        if args[0] in elsewhere and not ctx.resilient_parsing:  # a completion says nothing
            ctx.fail(
                f"No such command {args[0]!r}: `regroup trainingjob {args[0]}` is for jobs of a "
                "cluster, and `regroup ui` shows the runs of this machine."
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    examples=(
        "regroup validate job.yaml",
        "regroup run job.yaml",
        "regroup run job.yaml --kill worker=1@step=50",
        "regroup ui",
        "regroup plan --model llama:8b --nodes 2 --gpu h100-80",
        "regroup convert pytorchjob.yaml > job.yaml",
        "regroup checkpoint list regroup-runs/gpt",
        "regroup trainingjob why gpt",
    ),
)
@click.version_option(package_name="regroup")
def main() -> None:
    """Elastic, fault-tolerant distributed PyTorch training.

    FILE holds a TrainingJob, in the same YAML for this machine and for a cluster. `regroup COMMAND
    --help` has the options and more examples. What talks to a cluster is in `regroup trainingjob`,
    which is also `kubectl trainingjob`.

    Exit codes: 0 done, 1 the job failed, a file is wrong or a check found something, 2 a wrong
    command line, 130 ended by Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ranks write what a terminal may not show
            stream.reconfigure(errors="backslashreplace")


class FaultParameter(click.ParamType[Fault]):
    """A `--kill`."""

    name = "fault"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fault:
        """Read a fault. Raises click.BadParameter, which shows the syntax."""
        try:
            return value if isinstance(value, Fault) else parse_fault(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    cls=Verb,
    examples=(
        "regroup run job.yaml",
        "regroup run job.yaml --workers 4 --directory /data/gpt",
        "regroup run job.yaml --kill worker=0@step=120 --kill coordinator@step=200",
        "regroup run job.yaml --plain --summary summary.json",
    ),
)
@click.argument("file", type=_FILE)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The job's folder; it resumes there.",
)
@click.option(
    "--kill", "faults", multiple=True, type=FaultParameter(), help=f"Inject a fault: {EXAMPLES}."
)
@click.option("--workers", type=click.IntRange(min=1), help="Workers instead of spec.replicas.")
@click.option("--plain", is_flag=True, help="Plain lines instead of a live display.")
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a JSON summary.",
)
def run(
    file: Path,
    directory: Path | None,
    faults: tuple[Fault, ...],
    workers: int | None,
    plain: bool,
    summary_file: Path | None,
) -> None:
    """Train the job of FILE with local processes.

    FILE is the same YAML as on a cluster. Checkpoints, logs and the history go to a folder, by
    default regroup-runs/NAME here. The same command goes on there. Ctrl-C saves first; a second one
    does not wait for it.

    Exit codes: 0 the job completed, 1 it failed, was suspended, or a --kill was never injected.
    """
    require(OF_TRAINER)
    given = _only_job(file)
    (document,) = given.jobs
    folder = (directory or RUNS_FOLDER / document.name).absolute()
    spec = _spec_of(given, folder)
    if spec.progress_pattern and not has_re2():
        raise click.ClickException(f"{file}: spec.{NEEDS_RE2}")
    if spec.uses_torchrun:
        wanted = torchrun_wanted(spec, document.name, file.absolute().parent, folder, workers)
        sys.exit(play_torchrun(wanted, faults, plain, summary_file))
    if lines := [fault for fault in faults if fault.unit == "line"]:
        raise click.ClickException(
            f"--kill {lines[0]}: @line= is only for launcher torchrun: use @step= or @seconds="
        )
    try:
        desired = local_desired(spec, document.name, str(folder), workers)
    except ValueError as error:
        raise click.ClickException(
            f"{file}: with local workers of {ranks_per_worker(spec)} rank: {error}"
        ) from None
    local = LocalRun(desired, ranks_per_worker(spec), faults)
    if script := user_script(spec.template):
        local.working_directory = file.absolute().parent
        local.variables = {**script.environment, **script.variables}
    start = time.monotonic()
    outcome = _play(local, plain)
    summary = summarize(local, outcome, time.monotonic() - start)
    click.echo(sentence(summary))
    _print_more(outcome, f"regroup run {click.format_filename(file)} --directory {folder}")
    if summary_file is not None:
        write(summary, summary_file)
    if missed := never_injected(local.pending_faults):
        click.echo(missed, err=True)
    sys.exit(0 if outcome.result == "completed" and not missed else 1)


def _print_more(outcome: Outcome, command: str) -> None:
    """Say why a job failed, or by which command a suspended one goes on."""
    if outcome.result == "failed":
        click.echo(without_escapes(outcome.message), err=True)
    if outcome.result == "suspended":
        click.echo(f"resume with: {command}")


def _play(local: LocalRun, plain: bool) -> Outcome:
    with Display(Console(), plain) as display:
        local.on_status, local.on_note, local.on_line = display.show, display.note, display.line
        directory = Path(local.desired.directory)
        return play(local, display.note, "saving, then stopping", directory)


def _only_job(file: Path) -> JobFile:
    found, problems = find_problems(file, on_cluster=False)
    if problems:
        raise click.ClickException("\n".join(str(problem) for problem in problems))
    if len(found.jobs) > 1:
        raise click.ClickException(f"{file}: holds {len(found.jobs)} jobs; run takes one")
    return found


def _spec_of(given: JobFile, folder: Path) -> TrainingJobSpec:
    """The spec of the job, whose code is written below the folder of the run. Raises
    click.ClickException.
    """
    (document,) = given.jobs
    job = document.value
    if given.code is not None:
        try:
            job = job_in_folder(job, given.code.value, write_code(given.code.value, folder))
        except OSError as error:
            raise click.ClickException(explain(error, folder)) from None
        except ValueError as error:
            raise click.ClickException(f"{document.file}: {error}") from None
    return TrainingJobSpec.model_validate(job["spec"])


for command in (run, ui, validate, plan_command, convert, checkpoint, trainingjob):
    main.add_command(command)

if __name__ == "__main__":
    main()
