"""`python -m devcluster`: the command line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from devcluster import binaries, progress
from devcluster import policies as enforcement
from devcluster.cluster import Cluster, NodeHandle
from devcluster.errors import DevclusterError
from devcluster.removal import remove

DEFAULT_NAME = "regroup"

name_option = click.option(
    "--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster."
)


class Commands(click.Group):
    """Shows our errors as messages without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DevclusterError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
def main() -> None:
    """A real multi-node Kubernetes on this machine, without Docker."""


@main.command()
@name_option
@click.option("--nodes", default=3, show_default=True, help="Number of nodes.")
@click.option("--policies", is_flag=True, help="Enforce NetworkPolicies, by kube-router.")
def up(name: str, nodes: int, policies: bool) -> None:
    """Start a cluster, or use the running one, and print how to use it."""
    cluster = Cluster.up(name, nodes, progress.to_stderr())
    if policies:
        cluster.enforce_policies(progress.to_stderr())
    click.echo(f"export KUBECONFIG={cluster.kubeconfig}")


@main.command()
@name_option
def down(name: str) -> None:
    """Remove a cluster completely."""
    with progress.step(progress.to_stderr(), f"cluster {name} was removed"):
        remove(name)


@main.command()
@name_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str, as_json: bool) -> None:
    """Show nodes, components, process ids and addresses."""
    shown = Cluster.find(name).status()
    if as_json:
        click.echo(json.dumps(shown, indent=2))
        return
    console = Console()
    console.print(
        f"cluster {shown['name']}  {shown['server']}  "
        f"{shown['network']}\nKUBECONFIG={shown['kubeconfig']}"
    )
    table = Table("", "address", "state", "programs (process id)")
    table.add_row(
        "control plane", shown["server"].partition("//")[2], "", _programs(shown["controlPlane"])
    )
    for node in shown["nodes"]:
        states = ["Ready" if node["ready"] else "not Ready"]
        states += ["disconnected"] if not node["link"] else []
        states += ["frozen"] if node["frozen"] else []
        table.add_row(
            node["name"], node["address"], ", ".join(states), _programs(node["components"])
        )
    console.print(table)


def _programs(pids: dict[str, int | None]) -> str:
    return "\n".join(f"{name} {'-' if pid is None else pid}" for name, pid in pids.items())


@main.command()
@name_option
def kubeconfig(name: str) -> None:
    """Print the path of the administrator's kubeconfig."""
    click.echo(Cluster.find(name).kubeconfig)


@main.command()
@click.option("--pin", is_flag=True, help="First pin the Go module to KUBERNETES_VERSION.")
@click.option("--policies", is_flag=True, help="Also build what enforces NetworkPolicies.")
def build(pin: bool, policies: bool) -> None:
    """Build the cluster's programs and print their folder."""
    if pin:
        binaries.pin()
    if policies:
        enforcement.KUBE_ROUTER.build(progress.to_stderr())
    click.echo(binaries.build(progress.to_stderr()))


@main.group()
def images() -> None:
    """Container images."""


@images.command()
@name_option
@click.option(
    "--as", "reference", default=None, help="Name of the image. Overrides the name in its file."
)
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
def load(name: str, reference: str | None, sources: tuple[Path, ...]) -> None:
    """Load images onto all nodes: docker-archives, OCI archives or OCI layout folders."""
    if reference is not None and len(sources) > 1:
        raise click.UsageError("--as names one image: give one source")
    cluster = Cluster.find(name)
    for source in sources:
        click.echo(cluster.load_image(source, reference, progress.to_stderr()))


@main.group()
def volume() -> None:
    """Volumes with an enforced size."""


@volume.command()
@name_option
@click.option("--size", required=True, help="Such as 64Mi.")
@click.argument("volume_name")
def add(name: str, size: str, volume_name: str) -> None:
    """Add a volume. A claim binds to it by `storageClassName: VOLUME_NAME`."""
    try:
        Cluster.find(name).add_volume(volume_name, size)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from wrong


@main.group()
def node() -> None:
    """Simulate faults of a node."""


def _node_command(verb: str, act: Callable[[NodeHandle], None], summary: str) -> None:
    @node.command(verb, help=summary)
    @name_option
    @click.argument("node_name", metavar="NODE")
    def command(name: str, node_name: str) -> None:
        handle = Cluster.find(name).node(node_name)
        with progress.step(progress.to_stderr(), f"{verb} {node_name}"):
            act(handle)


_node_command("kill", NodeHandle.kill, "Cut its power: everything on it ends at once.")
_node_command("start", NodeHandle.start, "Power it on again.")
_node_command("freeze", NodeHandle.freeze, "Stop all its processes without ending them.")
_node_command("thaw", NodeHandle.thaw, "Undo freeze.")
_node_command("partition", NodeHandle.partition, "Disconnect its network. Its pods keep running.")
_node_command("heal", NodeHandle.heal, "Undo partition.")


@main.command()
@name_option
@click.option("-f", "--follow", is_flag=True, help="Continue to print new lines.")
@click.argument("component")
def logs(name: str, follow: bool, component: str) -> None:
    """Print the log of a component: kube-apiserver, kubelet-n1, ..."""
    processes = Cluster.find(name).processes
    if component not in processes.names():
        raise DevclusterError(
            f"There is no component {component!r}: {', '.join(processes.names())}."
        )
    with processes.log(component).open() as log:
        while True:
            text = log.read()
            sys.stdout.write(text)
            sys.stdout.flush()
            if not text and not follow:
                return
            if not text:
                time.sleep(0.2)


if __name__ == "__main__":
    # Standard output may be a closed pipe. Then end without a traceback.
    try:
        main(prog_name="python -m devcluster")
    except BrokenPipeError:
        os._exit(1)
