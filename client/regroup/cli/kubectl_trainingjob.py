"""The command `kubectl trainingjob`: its verbs, and how errors end it.

Modules of verbs import at the top only what `--help` needs.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from regroup.cli import INTERRUPTED
from regroup.cli.bundle_verb import bundle
from regroup.cli.change_verbs import resume, scale, submit, suspend
from regroup.cli.checkpoint_verbs import export, list_checkpoints, verify
from regroup.cli.cluster_options import Verb, cluster_flags
from regroup.cli.completion_verb import VARIABLE, completion
from regroup.cli.debug_verb import debug
from regroup.cli.doctor_verb import doctor
from regroup.cli.explain_verbs import logs, timeline, why
from regroup.cli.failure_verb import simulate_failure
from regroup.cli.request_verbs import checkpoint, restart
from regroup.cli.show_verbs import describe, get, status, top
from regroup.cli.ui_commands import ui_verb
from regroup.cli.validate_command import validate_files

TRACEBACK = "REGROUP_TRACEBACK"


class Verbs(Verb, click.Group):
    """Shows errors in a sentence, and verbs in the order in which one meets them."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """As they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb. What it raises becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            raise click.ClickException(_sentence(error)) from None


def _sentence(error: Exception) -> str:
    from regroup.kubernetes.cluster_errors import ClusterError

    if isinstance(error, ClusterError):
        return str(error)
    return (
        f"unexpected {type(error).__name__}: {error}: please report it, with what {TRACEBACK}=1 "
        "shows"
    )


@click.group(
    "trainingjob",
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        "kubectl trainingjob get -A",
        "kubectl trainingjob why gpt",
        "kubectl trainingjob logs gpt --failed",
        "kubectl trainingjob submit -f job.yaml --wait",
    ),
)
@click.version_option(package_name="regroup")
@cluster_flags
@click.pass_context
def trainingjob(ctx: click.Context, /, **chosen: Any) -> None:
    """See and change TrainingJobs, and find out why one does not train.

    Exit codes: 0 done, 1 an error, 2 a wrong command line; `status` and --wait
    have more. NAME is `gpt` or `trainingjob/gpt`.
    """
    ctx.obj = chosen
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # messages may hold what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")


for verb in (
    submit, get, status, describe, logs, why, timeline, top, ui_verb, debug, scale, suspend, resume,
    restart, checkpoint, bundle, simulate_failure, doctor, validate_files, completion,
):  # fmt: skip
    trainingjob.add_command(verb)
for verb in (list_checkpoints, verify, export):
    checkpoint.add_command(verb)


def main() -> None:
    """Run the command, as kubectl starts it."""
    trainingjob(prog_name="kubectl trainingjob", complete_var=VARIABLE)
