"""`completion`: what makes a shell complete verbs, flags and names of jobs."""

from __future__ import annotations

import click

from regroup.cli.cluster_options import Verb

VARIABLE = "_KUBECTL_TRAININGJOB_COMPLETE"
"""By which a script asks for candidates. Click would take the space of `kubectl trainingjob` into
its own name for it, which no shell can set.
"""


@click.command(
    cls=Verb,
    examples=(
        "source <(kubectl trainingjob completion bash)",
        'kubectl trainingjob completion zsh > "${fpath[1]}/_kubectl-trainingjob"',
        "kubectl trainingjob completion fish | source",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It is for `kubectl-trainingjob`. `kubectl trainingjob` needs no script of ours:
    kubectl's own completion asks kubectl_complete-trainingjob, which is installed
    beside this command.
    """
    from click.shell_completion import get_completion_class

    from regroup.cli.kubectl_trainingjob import trainingjob

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(trainingjob, {}, "kubectl-trainingjob", VARIABLE).source())
