"""TrainJob of Kubeflow Trainer (v2.3) with the runtime that it names. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from regroup.converting.draft import ConvertOptions, Draft
from regroup.converting.launch_command import Launch
from regroup.converting.object_metadata import ROWS as METADATA_ROWS
from regroup.converting.object_metadata import take_metadata
from regroup.converting.pod_template import (
    Pod,
    locate,
    merge_layer,
    read_pod,
    take_layer,
)
from regroup.converting.source import Place, Refusal, Row, Source, value_at
from regroup.converting.workers import Ranks, Size, put_size, take_launch
from regroup_operator.api.pod_types import amount_of
from regroup_operator.api.replica_groups import GPU
from regroup_trainer.protocol.message import quote

KIND = "TrainJob"
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_CONTAINER = "node"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_INITIALIZER = "load data in the script, or in an init container"
_OTHER_JOB = "only the job that trains is converted"
_JOBSET = "there is no JobSet"
_JOBS = "spec.template.spec.replicatedJobs"
_PATCHES = "spec.runtimePatches"
_PATCHED_JOBS = f"{_PATCHES}.trainingRuntimeSpec.template.spec.replicatedJobs"
_TRAINER = "spec.template.spec.containers[trainer]"
ROWS = (
    *METADATA_ROWS,
    Row("spec.runtimeRef", "spec.template", "the runtime's pods, see below"),
    Row("spec.initializer", "", _INITIALIZER),
    Row("spec.trainer.image", "spec.image"),
    Row("spec.trainer.command", f"{_TRAINER}.command", "with args, less a launcher"),
    Row("spec.trainer.args", f"{_TRAINER}.command", "behind command"),
    Row("spec.trainer.env", f"{_TRAINER}.env"),
    Row("spec.trainer.numNodes", "spec.replicas"),
    Row("spec.trainer.numProcPerNode", "spec.nprocPerNode", "of torchrun"),
    Row("spec.trainer.resourcesPerNode", "spec.resources"),
    Row(f"{_PATCHES}.manager", "", "a job has one owner"),
    Row(f"{_PATCHES}.time", "", "the API server sets it"),
    Row(f"{_PATCHED_JOBS}.template.spec.template", "spec.template", "see pods"),
    Row(f"{_PATCHED_JOBS}.name", "spec.template", "of the job with the trainer"),
    Row(_PATCHED_JOBS, "", _JOBSET),
    Row(f"{_PATCHES}.trainingRuntimeSpec", "", _JOBSET),
    Row("spec.suspend", "spec.suspend"),
    Row("spec.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
    Row("spec.managedBy", "", "Regroup's operator is in charge"),
)
_ENVIRONMENT = "only ranks get the variables of torchrun"
_OLD_FIELD = "only older Trainers have it: set nprocPerNode and elasticPolicy of the job"
_OTHERS = ("mpi", "jax", "xgboost", "flux")
RUNTIME_ROWS = (
    Row("apiVersion", "apiVersion"),
    Row("kind", "kind"),
    Row("metadata.name", "spec.template", "what a TrainJob names"),
    Row("metadata", "", "it is about the runtime, not the job"),
    Row("spec.mlPolicy.numNodes", "spec.replicas", "the TrainJob's wins"),
    Row("spec.mlPolicy.torch", "spec.launcher", "Regroup's own starts the ranks"),
    *(Row(f"spec.mlPolicy.{name}", "", "refused: only torch can be converted") for name in _OTHERS),
    Row("spec.podGroupPolicy", "", "gang scheduling is not supported yet"),
    Row(f"{_JOBS}.name", "spec.template", "of the job with the trainer"),
    Row(f"{_JOBS}.template.spec.template", "spec.template", "see pods"),
    Row(f"{_JOBS}.dependsOn", "", _INITIALIZER),
    Row(_JOBS, "", _JOBSET),
    Row("spec.template", "", _JOBSET),
)
DEFAULT_NAME = "torch-distributed"
DEFAULT_RUNTIME: dict[str, Any] = {
    "kind": RUNTIMES[0],
    "metadata": {"name": DEFAULT_NAME},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": _CONTAINER,
                        "template": {
                            "metadata": {"labels": {_STEP: "trainer"}},
                            "spec": {
                                "template": {
                                    "spec": {
                                        "containers": [
                                            {
                                                "name": _CONTAINER,
                                                "image": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-"
                                                "runtime",
                                            }
                                        ]
                                    }
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}
"""What Kubeflow Trainer v2.3 installs by this name."""
_IN_POD = {
    "image": "image",
    "command": "command",
    "args": "args",
    "env": "env",
    "resourcesPerNode": "resources",
}
"""Field of the trainer -> field of its container."""
_OVERRIDDEN = "a TrainJob's own value wins"


def convert(
    source: Source, runtimes: list[Source], options: ConvertOptions
) -> tuple[Draft, Source]:
    """The TrainingJob of a TrainJob, and its runtime: one of `runtimes`, or what Kubeflow installs.
    Raises Refusal.
    """
    draft = Draft()
    take_metadata(source, draft, options)
    runtime = _runtime(source, runtimes, draft)
    job = _trainer_job(runtime)
    pod = _pod(source, runtime, job)
    draft.put("suspend", source.flag("spec", "suspend"))
    draft.put("activeDeadlineSeconds", source.number("spec", "activeDeadlineSeconds"))
    place = ("spec", "trainer", "command")
    launch = take_launch(source, place, pod, options)
    size = Size(_nodes(source, runtime), None, _ranks(source, launch, pod))
    put_size(draft, size, launch, pod, lambda text: source.remark(place, text))
    pod.put(draft, launch.command)
    return draft, runtime


def runtime_of(job: Mapping[Any, Any]) -> tuple[str, str]:
    """Kind and name of the runtime of a TrainJob."""
    kind, name = (value_at(job, ("spec", "runtimeRef", field)) for field in ("kind", "name"))
    return str(kind or RUNTIMES[0]), str(name)


def _runtime(source: Source, runtimes: list[Source], draft: Draft) -> Source:
    """The runtime that a TrainJob names. Raises Refusal where it is not known."""
    place = ("spec", "runtimeRef")
    source.mapping(*place)
    for field in ("apiGroup", "kind", "name"):
        source.text(*place, field)
    kind, name = runtime_of(source.value)
    if source.get(*place, "name") is None:
        raise source.refuse((*place, "name"), "is missing: it says what the pods are")
    for runtime in runtimes:
        if (runtime.kind, str(runtime.get("metadata", "name"))) == (kind, name):
            for where in (("apiVersion",), ("kind",), ("metadata", "name")):
                runtime.take(*where)
            return _of_torch(runtime)
    if (kind, name) == (RUNTIMES[0], DEFAULT_NAME):
        draft.checks.append(
            f"spec.image: {kind} {name} is not in the files: it is taken as Kubeflow Trainer v2.3 "
            "installs it"
        )
        return Source(DEFAULT_RUNTIME, kind, source.document)
    raise source.refuse(
        place,
        f"{kind} {quote(name)} is not in the files: give its file too (kubectl get "
        f"{kind.lower()} {name} -o yaml)",
    )


def _of_torch(runtime: Source) -> Source:
    policy = runtime.mapping("spec", "mlPolicy")
    for other in _OTHERS:
        if policy.get(other) is not None:
            problem = f"runtime {quote(runtime.get('metadata', 'name'))}: only torch is possible"
            raise runtime.refuse(("spec", "mlPolicy", other), problem)
    torch: Place = ("spec", "mlPolicy", "torch")
    runtime.take(*torch)
    for field in runtime.mapping(*torch):
        runtime.leave((*torch, field), _ENVIRONMENT if field == "envInjection" else _OLD_FIELD)
    return runtime


def _trainer_job(runtime: Source) -> Place:
    """The job of a runtime that trains: it has the label, or the name `node`. Raises Refusal."""
    place: Place = ("spec", "template", "spec", "replicatedJobs")
    jobs = [(*place, number) for number, _ in enumerate(runtime.sequence(*place))]
    labelled = [job for job in jobs if _step(runtime, job) == "trainer"]
    named = [job for job in jobs if runtime.get(*job, "name") == _CONTAINER]
    found = labelled or named
    if not found:
        raise runtime.refuse(
            place, f"no job has the label {_STEP}: trainer, or the name {_CONTAINER}"
        )
    for job in jobs:
        if job != found[0]:
            runtime.leave(job, _OTHER_JOB)
    return found[0]


def _step(runtime: Source, job: Place) -> Any:
    return runtime.mapping(*job, "template", "metadata", "labels").get(_STEP)


def _pod(source: Source, runtime: Source, job: Place) -> Pod:
    """The runtime's pod, with the patches and the trainer of the TrainJob over it."""
    runtime.text(*job, "name")
    runtime.take(*job, "template", "metadata", "labels", _STEP)
    place = (*job, "template", "spec", "template")
    layers = [(runtime, place, take_layer(runtime, place, _is_main))]
    layers += [
        (source, where, take_layer(source, where, _is_main))
        for where in _patches(source, runtime.get(*job, "name"))
    ]
    merged: dict[str, Any] = {}
    for number, (_, _, layer) in enumerate(layers):
        merged = _over(merged, layer, layers[:number])
    merged = _over(merged, _trainer_layer(source), layers)
    return read_pod(runtime, place, merged, _CONTAINER)


def _over(
    lower: dict[str, Any], upper: dict[str, Any], layers: list[tuple[Source, Place, dict[str, Any]]]
) -> dict[str, Any]:
    """A layer over the others. What it replaces is reported where it came from."""
    merged, replaced = merge_layer(lower, upper)
    for names in replaced:
        for source, place, _ in layers:
            where = locate(source.get(*place), names)
            if where is not None:
                source.leave((*place, *where), _OVERRIDDEN)
    return merged


def _is_main(name: object) -> bool:
    return name == _CONTAINER


def _patches(source: Source, job: object) -> list[Place]:
    """The places of the pod templates that patch the job with the trainer."""
    found = []
    for number, _ in enumerate(source.sequence("spec", "runtimePatches")):
        place: Place = ("spec", "runtimePatches", number)
        place = (*place, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for entry, _ in enumerate(source.sequence(*place)):
            if source.get(*place, entry, "name") == job:
                source.take(*place, entry, "name")
                found.append((*place, entry, "template", "spec", "template"))
            else:
                source.leave((*place, entry), _OTHER_JOB)
    return found


def _trainer_layer(source: Source) -> dict[str, Any]:
    """`spec.trainer` as a pod template."""
    place: Place = ("spec", "trainer")
    trainer = source.mapping(*place)
    given = {
        name: trainer[field] for field, name in _IN_POD.items() if trainer.get(field) is not None
    }
    pod = {"spec": {"containers": [{"name": _CONTAINER, **given}]}}
    checked = Source(pod, source.kind, source.document)
    try:
        layer = take_layer(checked, (), _is_main)
    except Refusal as refusal:
        raise source.refuse(place, str(refusal)) from None
    for field in _IN_POD:
        source.take(*place, field)
    for note in checked.left_out(()):
        source.leave((*place, *note.place[3:]), checked.why_left(note.place))
    return layer


def _nodes(source: Source, runtime: Source) -> int:
    given = source.number("spec", "trainer", "numNodes")
    default = runtime.number("spec", "mlPolicy", "numNodes")
    if given is not None and default is not None:
        runtime.leave(("spec", "mlPolicy", "numNodes"), _OVERRIDDEN)
    return next((count for count in (given, default) if count is not None), 1)


def _ranks(source: Source, launch: Launch, pod: Pod) -> Ranks:
    """As the Trainer counts them: as given, else one for each GPU, else one for each CPU, of which
    a part counts as one.
    """
    place = ("spec", "trainer", "numProcPerNode")
    given = source.number(*place)
    if launch.starter == "python":
        source.leave(place, "the command starts one rank for each worker")
        return 1
    if given is not None:
        return given
    return "auto" if GPU in pod.limits else max(1, math.ceil(_cpus(pod.resources)))


def _cpus(resources: Mapping[str, Any]) -> Fraction:
    amounts = ((resources.get(part) or {}).get("cpu") for part in ("requests", "limits"))
    given = next((amount for amount in amounts if amount is not None), 0)
    return amount_of(given) or Fraction(0)
