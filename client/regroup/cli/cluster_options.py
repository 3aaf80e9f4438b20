"""The flags that choose a cluster, as kubectl has them, and -o. What they need is imported late, so
that `--help` does not wait for it.
"""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from regroup.kubernetes.cluster_api import ClusterApi
    from regroup.kubernetes.kubeconfig import Target

Function = TypeVar("Function", bound=Callable[..., Any])
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NO_LIMIT_SECONDS = 86400.0
FOR_PROGRAMS = ("json", "yaml", "name")
"""What -o may say where people do not read what is printed."""
_RESOURCE = re.compile(r"^(trainingjobs?|tj)(\.regroup\.dev)?/")


class Verb(click.Command):
    """A command whose help ends with examples, each on a line of its own."""

    def __init__(self, *arguments: Any, examples: Sequence[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"  {line}\n")


class DurationParameter(click.ParamType[float]):
    """A time: 30, 30s, 5m, 1h."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds. Raises click.BadParameter, which shows the syntax."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 30s, 5m or 1h", param, ctx)
        return float(found[1]) * _UNITS[found[2] or ""]


@dataclass(frozen=True)
class ChosenCluster:
    """What the flags chose. Nothing is read until `api` or `namespace` is asked for."""

    kubeconfig: str | None
    context: str | None
    chosen_namespace: str | None
    user: str | None
    """Who asks, instead of the user of the kubeconfig."""
    timeout: float

    @functools.cached_property
    def api(self) -> ClusterApi:
        """The connection. Raises click.ClickException without the extra, ClusterError without a
        kubeconfig that can be used.
        """
        _require_client()
        from regroup.kubernetes.cluster_api import ClusterApi

        api = ClusterApi(self._target(), self.timeout or _NO_LIMIT_SECONDS)
        if context := click.get_current_context(silent=True):
            context.call_on_close(api.close)
        return api

    @functools.cached_property
    def namespace(self) -> str:
        """The namespace of the flag, else of the context."""
        _require_client()
        return self._target().current_namespace()

    def _target(self) -> Target:
        from regroup.kubernetes.kubeconfig import Target

        return Target(self.kubeconfig, self.context, self.chosen_namespace, self.user)


def _require_client() -> None:
    from regroup_trainer.protocol.extras import missing_extra

    if (missing := missing_extra("kubernetes", ("kubernetes",))) is not None:
        raise click.ClickException(missing)


_OPTIONS = (
    click.option("-n", "--namespace", metavar="NAME", help="Instead of the context's namespace."),
    click.option("--context", metavar="NAME", help="A context of the kubeconfig."),
    click.option("--kubeconfig", metavar="FILE", help="Instead of $KUBECONFIG or ~/.kube/config."),
    click.option("--as", "user", metavar="USER", help="Ask as this user (impersonation)."),
    click.option(
        "--request-timeout",
        type=DurationParameter(),
        metavar="TIME",
        help="Time that one request may take, such as 30s; 0: no limit.  [default: 30s]",
    ),
)
_NAMES = ("namespace", "context", "kubeconfig", "user", "request_timeout")


def cluster_flags(command: Function) -> Function:
    """The flags themselves, for the group: they may stand before the verb."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def on_cluster(verb: Function) -> Function:
    """Give a verb the flags, and call it with `cluster`."""

    @functools.wraps(verb)
    def run(*arguments: Any, **options: Any) -> Any:
        outer = click.get_current_context().find_object(dict) or {}
        given = {name: options.pop(name) for name in _NAMES}
        chosen = {n: v if v is not None else outer.get(n) for n, v in given.items()}
        return verb(*arguments, cluster=cluster_of(chosen), **options)

    return cluster_flags(run)  # type: ignore[return-value]


def cluster_of(chosen: dict[str, Any]) -> ChosenCluster:
    """The cluster of the flags' values."""
    timeout = chosen.get("request_timeout")
    return ChosenCluster(
        chosen.get("kubeconfig"),
        chosen.get("context"),
        chosen.get("namespace"),
        chosen.get("user"),
        30.0 if timeout is None else timeout,
    )


def output_option(*, wide: str = "", without: str = "") -> Callable[[Function], Function]:
    """-o; `wide` says what it adds, and is refused where it adds nothing. `without`: a form that
    the verb refuses, too.
    """
    forms = [form for form in (*(["wide"] if wide else []), *FOR_PROGRAMS) if form != without]
    shown = f"{', '.join(forms[:-1])} or {forms[-1]}" + (f"; wide adds {wide}" if wide else "")
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        metavar="FORMAT",
        help=f"Output: {shown}.",
    )


def resource_name(job: str) -> str:
    """A job's name as `-o name` prints it, for any command of kubectl."""
    from regroup.kubernetes.job_record import RESOURCE

    return f"{RESOURCE}/{job}"


def print_for_programs(value: object, output: str | None, *names: str) -> bool:
    """Print what -o json, yaml or name asks for: a value, or names. Returns whether it did: what
    people read is left to the caller.
    """
    if output == "name":
        show(names)
    elif output in ("json", "yaml"):
        print_structured(value, output)
    return output in FOR_PROGRAMS


def refuse_for_programs(flag: str, output: str | None) -> None:
    """Raises click.UsageError where a flag has lines printed as they come, and -o wants one
    value.
    """
    if output in FOR_PROGRAMS:
        raise click.UsageError(f"{flag} prints lines: leave out -o {output}")


def print_structured(value: object, output: str) -> None:
    """Print a value as JSON or YAML."""
    from regroup.kubernetes.output import structured

    click.echo(structured(value, output))


def job_argument(*, many: bool = False) -> Callable[[Function], Function]:
    """NAME: `gpt`, or `trainingjob/gpt` as other commands print it."""
    return click.argument(
        "names" if many else "name",
        nargs=-1 if many else 1,
        metavar="[NAME]..." if many else "NAME",
        callback=_plain_name,
        shell_complete=_complete_jobs,
    )


def _plain_name(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
    if isinstance(value, str):
        name = _RESOURCE.sub("", value)
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            raise click.BadParameter(f"{value!r} is no name of a TrainingJob")
        return name
    return tuple(_plain_name(_ctx, _param, one) for one in value or ())


def _complete_jobs(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    """Names of jobs, for completion; none when the cluster does not answer soon."""
    outer = ctx.find_object(dict) or {}
    chosen = {n: ctx.params.get(n) or outer.get(n) for n in _NAMES}
    cluster = cluster_of({**chosen, "request_timeout": 3.0})
    try:
        jobs = cluster.api.jobs(cluster.namespace)
    except Exception:  # nothing may be printed into the line that somebody types
        return []
    names = (str(job["metadata"]["name"]) for job in jobs)
    return [name for name in names if name.startswith(typed)]


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def show(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(line)


def note(text: str) -> None:
    """Print a line that is no result."""
    click.echo(text, err=True)
    sys.stderr.flush()
