"""`regroup ui` and `kubectl trainingjob ui`: jobs in the browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from regroup.cli.cluster_options import ChosenCluster, Verb, on_cluster

if TYPE_CHECKING:
    from regroup.web_page.job_source import JobSource

Function = TypeVar("Function", bound=Callable[..., Any])


def page_options(command: Function) -> Function:
    """How the page is served."""
    port = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        metavar="PORT",
        help="Port of 127.0.0.1 instead of a free one.",
    )
    no_browser = click.option(
        "--no-browser", is_flag=True, help="Print the address, and open no browser."
    )
    return port(no_browser(command))


@click.command("ui", cls=Verb, examples=("regroup ui", "regroup ui /data/runs --no-browser"))
@click.argument(
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("regroup-runs"),
    metavar="[FOLDER]",
)
@page_options
def ui(folder: Path, port: int, no_browser: bool) -> None:
    """Show the runs of this machine in the browser.

    FOLDER holds the folders of `regroup run`, or is one; by default regroup-runs here. The page
    shows each run's time line of recoveries, loss, workers, checkpoints, events and logs, live, and
    changes nothing. It is served on 127.0.0.1 alone, to the browser that opens the printed address
    first. Ctrl-C ends it.
    """
    from regroup.web_page.local_source import LocalSource

    serve(LocalSource(folder), port, open_browser=not no_browser)


@click.command(
    "ui",
    cls=Verb,
    examples=("kubectl trainingjob ui", "kubectl trainingjob ui -A --no-browser"),
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@page_options
@on_cluster
def ui_verb(cluster: ChosenCluster, all_namespaces: bool, port: int, no_browser: bool) -> None:
    """Show jobs in the browser.

    Each job's time line of recoveries, loss, workers, checkpoints, events and
    logs, live, as far as you may read them. The page changes no job: one
    button makes a pod for a moment, which reads the loss of a job that has
    ended. It is served on 127.0.0.1 alone, to the browser that opens the
    printed address first. Ctrl-C ends it.
    """
    from regroup.web_page.cluster_source import ClusterSource

    where = None if all_namespaces else cluster.namespace
    serve(ClusterSource(cluster.api, where), port, open_browser=not no_browser)


def serve(source: JobSource, port: int, *, open_browser: bool) -> None:
    """Serve until Ctrl-C. Raises click.ClickException for a port that cannot be had."""
    import asyncio

    from regroup.web_page.serve_page import serve_page

    try:
        asyncio.run(serve_page(source, port, open_browser=open_browser))
    except OSError as error:
        raise click.ClickException(
            f"--port {port}: {error.strerror}: give another one, or none"
        ) from None
