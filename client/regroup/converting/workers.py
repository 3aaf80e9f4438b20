"""What the workers of a job run, and how many workers and ranks it has, by what its object and its
command say. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup.converting.draft import ConvertOptions, Draft
from regroup.converting.inline_code import find_code, require_file
from regroup.converting.launch_command import Launch, read_launch
from regroup.converting.pod_template import Pod
from regroup.converting.source import Place, Source, left_out
from regroup_operator.api.replica_groups import GPU

_NO_COMMAND = "is missing, and the image's own is not known: write it, or give --entrypoint"
Ranks = int | Literal["auto"]
Report = Callable[[str], None]
"""Takes a sentence about a flag of the command that is left out."""


@dataclass(frozen=True)
class Size:
    """What the object says; the flags of the command win."""

    replicas: int
    bounds: tuple[int, int] | None = None
    """Of an elastic job."""
    ranks: Ranks | None = None
    """Of a worker."""
    max_restarts: int | None = None


def take_launch(source: Source, place: Place, pod: Pod, options: ConvertOptions) -> Launch:
    """What the main container of a pod starts; its variables are added to the pod. `place`: that of
    the command. Raises Refusal.
    """
    given = bool(pod.command) or not options.entrypoint
    words = [*(pod.command if given else options.entrypoint), *pod.args]
    try:
        found = find_code(words)
        launch = read_launch(found.words if found else words)
        if launch.code is not None:
            require_file(launch.code, "the script that the command writes")
    except ValueError as error:
        problem = str(error) if pod.command or options.entrypoint else _NO_COMMAND
        raise source.refuse(place, problem) from None
    pod.code = found.code if found else launch.code
    for text in launch.left:
        source.remark(place, text)
    pod.variables = {**pod.variables, **launch.variables}
    pod.working_directory = launch.working_directory
    for field in pod.replaced():
        source.remark(place, left_out(field, "it is set elsewhere too"))
    return launch


def put_size(draft: Draft, size: Size, launch: Launch, limits_of: Pod, report: Report) -> None:
    """Write the numbers of workers, ranks and restarts."""
    replicas, bounds = _workers(size, launch, report)
    draft.put("replicas", replicas)
    if bounds:
        draft.put("elasticPolicy", {"minReplicas": bounds[0], "maxReplicas": bounds[1]})
    ranks = _ranks(size, launch, replicas, report)
    if ranks != "auto":
        draft.put("nprocPerNode", ranks)
    elif GPU not in limits_of.limits:
        draft.checks.append(
            "spec.nprocPerNode: auto is one rank without a GPU, where torchrun would start one "
            "for each CPU"
        )
    asked = launch.flags.max_restarts
    _report_other("maxRestarts", size.max_restarts, asked, report)
    draft.put("restartPolicy.maxRestarts", size.max_restarts if asked is None else asked)


def _workers(size: Size, launch: Launch, report: Report) -> tuple[int, tuple[int, int] | None]:
    nodes = launch.flags.nodes
    if nodes is None or nodes == (size.bounds or (size.replicas, size.replicas)):
        return size.replicas, size.bounds
    low, high = nodes
    if low <= size.replicas <= high:
        _report_other("bounds", size.bounds, nodes, report)
        return size.replicas, nodes
    report(left_out(f"--nnodes={low}:{high}", f"the job has {size.replicas} workers"))
    return size.replicas, size.bounds


def _report_other(name: str, given: object, asked: object, report: Report) -> None:
    """Report a number of the object where the command says another."""
    if asked is not None and given not in (None, asked):
        report(left_out(f"{name} {given}", f"the command says {asked}"))


def _ranks(size: Size, launch: Launch, replicas: int, report: Report) -> Ranks:
    flags = launch.flags
    if launch.starter == "python":
        return size.ranks or 1
    if flags.processes is None:
        _report_other("nprocPerNode", size.ranks, flags.ranks, report)
        return flags.ranks or size.ranks or "auto"
    workers = flags.machines or replicas
    if flags.processes % workers or workers != replicas:
        written = f"--num_processes={flags.processes} on {workers} machines"
        report(left_out(written, f"the job has {replicas} workers, all of as many ranks"))
        return size.ranks or "auto"
    return flags.processes // workers
