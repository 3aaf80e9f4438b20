"""PyTorchJob of Kubeflow's Training Operator (kubeflow.org/v1). Pure."""

from __future__ import annotations

from regroup.converting.draft import ConvertOptions, Draft
from regroup.converting.launch_command import Launch
from regroup.converting.object_metadata import ROWS as METADATA_ROWS
from regroup.converting.object_metadata import take_metadata
from regroup.converting.pod_template import read_pod, take_layer
from regroup.converting.source import Place, Row, Source, is_leaf, leaves
from regroup.converting.workers import Ranks, Size, put_size, take_launch

KIND = "PyTorchJob"
_CONTAINER = "pytorch"
_MEETING = "the job brings its own rendezvous"
_GANG = "gang scheduling is not supported yet"
_SPECS = "spec.pytorchReplicaSpecs"
ROWS = (
    *METADATA_ROWS,
    Row("spec.runPolicy.cleanPodPolicy", "spec.cleanPodPolicy", "absent: Running, not None"),
    Row("spec.runPolicy.ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"),
    Row("spec.runPolicy.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
    Row("spec.runPolicy.backoffLimit", "spec.restartPolicy.maxRestarts", "absent: 10"),
    Row("spec.runPolicy.suspend", "spec.suspend"),
    Row("spec.runPolicy.managedBy", "", "Regroup's operator is in charge"),
    Row("spec.runPolicy.schedulingPolicy.priorityClass", "spec.scheduling.priorityClassName"),
    Row("spec.runPolicy.schedulingPolicy.queue", "", "queueing is not supported yet"),
    Row("spec.runPolicy.schedulingPolicy", "", _GANG),
    Row("spec.elasticPolicy.minReplicas", "spec.elasticPolicy.minReplicas"),
    Row("spec.elasticPolicy.maxReplicas", "spec.elasticPolicy.maxReplicas"),
    Row("spec.elasticPolicy.maxRestarts", "spec.restartPolicy.maxRestarts"),
    Row("spec.elasticPolicy.nProcPerNode", "spec.nprocPerNode", "spec.nprocPerNode wins"),
    Row("spec.elasticPolicy.metrics", "", "no autoscaler: kubectl scale, or a script"),
    Row("spec.elasticPolicy.standalone", "", _MEETING),
    *(
        Row(f"spec.elasticPolicy.{name}", "", _MEETING)
        for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf")
    ),
    Row("spec.nprocPerNode", "spec.nprocPerNode", "of torchrun; a script alone is one rank"),
    Row(f"{_SPECS}.*.replicas", "spec.replicas", "those of Master and Worker together"),
    Row(f"{_SPECS}.*.restartPolicy", "spec.restartPolicy", "Never: maxRestarts is 0"),
    Row(f"{_SPECS}.*.template", "spec.template", "that of Worker; see pods"),
)
_EXIT_CODES = "rules for exit codes are not supported yet"
_ALIKE = "it differs from that of Worker, and all workers of a job are alike"
_TYPES = ("master", "worker")


def convert(source: Source, options: ConvertOptions) -> Draft:
    """The TrainingJob of a PyTorchJob. Raises Refusal."""
    draft = Draft()
    take_metadata(source, draft, options)
    groups = _groups(source)
    place = (*groups.get("worker", groups.get("master", ())), "template")
    pod = read_pod(source, place, take_layer(source, place, _is_main), _CONTAINER)
    if len(groups) == 2:
        _take_equal(source, (*groups["master"], "template"), place)
    _put_policy(source, draft)
    command = (*place, "spec", "containers", "command")
    launch = take_launch(source, command, pod, options)
    size = Size(
        _replicas(source, groups),
        _bounds(source),
        _ranks(source, launch),
        _restarts(source, groups),
    )
    put_size(draft, size, launch, pod, lambda text: source.remark(command, text))
    pod.put(draft, launch.command)
    return draft


def _is_main(name: object) -> bool:
    return name == _CONTAINER


def _groups(source: Source) -> dict[str, Place]:
    """Master and Worker, which may be written in any case. Raises Refusal without either."""
    place: Place = ("spec", "pytorchReplicaSpecs")
    found: dict[str, Place] = {}
    for key in source.mapping(*place):
        if str(key).lower() in _TYPES and source.mapping(*place, key):
            if str(key).lower() in found:
                raise source.refuse((*place, key), "stands there twice, in different case")
            found[str(key).lower()] = (*place, key)
    if not found:
        raise source.refuse(place, "has neither Master nor Worker: it says what to run")
    empty = [kind for kind, where in found.items() if source.number(*where, "replicas") == 0]
    for kind in empty if len(empty) < len(found) else ():
        source.leave(found.pop(kind), "its replicas are 0")
    return found


def _take_equal(source: Source, master: Place, worker: Place) -> None:
    """Take of the template of Master what is as in that of Worker; the rest is reported."""
    for place, value in leaves(source.mapping(*master), master):
        twin = (*worker, *place[len(master) :])
        if is_leaf(source.get(*twin)) and source.get(*twin) == value:
            source.take(*place)
            if why := source.why_left(twin):
                source.leave(place, why)
        else:
            source.leave(place, _ALIKE)


def _put_policy(source: Source, draft: Draft) -> None:
    policy: Place = ("spec", "runPolicy")
    source.mapping(*policy)
    for field in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        draft.put(field, source.number(*policy, field))
    draft.put("cleanPodPolicy", source.text(*policy, "cleanPodPolicy") or None)
    draft.put("suspend", source.flag(*policy, "suspend"))
    source.mapping(*policy, "schedulingPolicy")
    priority = source.text(*policy, "schedulingPolicy", "priorityClass")
    draft.put("scheduling.priorityClassName", priority or None)


def _replicas(source: Source, groups: dict[str, Place]) -> int:
    counts = (source.number(*place, "replicas") for place in groups.values())
    return sum(1 if count is None else count for count in counts)


def _bounds(source: Source) -> tuple[int, int] | None:
    """minReplicas and maxReplicas, each of which stands for the other where it is absent."""
    if not source.mapping("spec", "elasticPolicy"):
        return None
    low, high = (
        source.number("spec", "elasticPolicy", field) for field in ("minReplicas", "maxReplicas")
    )
    if low is None and high is None:
        return None
    return (low if low is not None else high or 0), (high if high is not None else low or 0)


def _ranks(source: Source, launch: Launch) -> Ranks | None:
    old = ("spec", "elasticPolicy", "nProcPerNode")
    place = ("spec", "nprocPerNode")
    deprecated, text = source.number(*old), source.text(*place)
    if launch.starter == "python":
        for where in (old, place):
            source.leave(where, "the command starts one rank for each worker")
        return 1
    if text is not None and deprecated is not None:
        source.leave(old, "spec.nprocPerNode wins")
    if text in (None, "auto", "gpu"):
        return deprecated if text is None else "auto"
    if text.isascii() and text.isdigit() and len(text) < 5:
        return int(text)
    source.leave(place, "give a number, or auto: one rank for each GPU")
    return "auto"


def _restarts(source: Source, groups: dict[str, Place]) -> int | None:
    elastic = source.number("spec", "elasticPolicy", "maxRestarts")
    limit = source.number("spec", "runPolicy", "backoffLimit")
    if elastic is not None and limit is not None:
        source.leave(("spec", "runPolicy", "backoffLimit"), "elasticPolicy.maxRestarts wins")
    policies = [source.text(*place, "restartPolicy") for place in groups.values()]
    chosen = limit if elastic is None else elastic
    for place, policy in zip(groups.values(), policies, strict=True):
        if policy == "ExitCode":
            source.leave((*place, "restartPolicy"), _EXIT_CODES)
        elif policy == "Never" and chosen is None and set(policies) == {"Never"}:
            return 0
        elif policy == "Never":
            source.leave((*place, "restartPolicy"), "other fields allow restarts")
    return chosen
