"""RayJob of KubeRay (ray.io/v1) whose script starts a TorchTrainer, as far as its objects say.
Pure.

What Ray's driver does, a job does not need: its script is started once for each rank. So the script
has to be changed, which the conversion says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from regroup.converting.draft import ConvertOptions, Draft
from regroup.converting.object_metadata import ROWS as METADATA_ROWS
from regroup.converting.object_metadata import take_metadata
from regroup.converting.pod_template import Pod, is_of_ranks, read_pod, take_layer
from regroup.converting.source import Place, Row, Source
from regroup.converting.workers import Ranks, Size, put_size, take_launch
from regroup_operator.api.replica_groups import GPU
from regroup_trainer.protocol.message import quote, shorten
from regroup_trainer.system.bounded_yaml import BoundedLoader, explain

KIND = "RayJob"
_CLUSTER = "spec.rayClusterSpec"
_GROUPS = f"{_CLUSTER}.workerGroupSpecs"
_DRIVER = "there is no driver and no head: ranks meet by themselves"
_RAY = "it is about Ray"
_PACKAGES = "the image has to bring it"
ROWS = (
    *METADATA_ROWS,
    Row("spec.entrypoint", "spec.template.spec.containers[trainer].command", "it must be changed"),
    Row("spec.runtimeEnvYAML.env_vars", "spec.template.spec.containers[trainer].env"),
    Row("spec.runtimeEnvYAML", "", _PACKAGES),
    Row("spec.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
    Row("spec.backoffLimit", "spec.restartPolicy.maxRestarts", "absent: 10, not 0"),
    Row("spec.suspend", "spec.suspend"),
    Row("spec.shutdownAfterJobFinishes", "spec.cleanPodPolicy", "true: All; false: None"),
    Row("spec.ttlSecondsAfterFinished", "", "there it deletes the cluster, here the job"),
    Row("spec.managedBy", "", "Regroup's operator is in charge"),
    Row("spec.clusterSelector", "", "refused: a job brings its own pods"),
    Row("spec.submissionMode", "", _DRIVER),
    Row("spec.*", "", _RAY),
    Row(f"{_CLUSTER}.enableInTreeAutoscaling", "spec.elasticPolicy", "with the bounds below"),
    Row(f"{_CLUSTER}.*", "", _RAY),
    Row(f"{_CLUSTER}.headGroupSpec", "", _DRIVER),
    Row(f"{_GROUPS}.replicas", "spec.replicas", "one group; times numOfHosts"),
    Row(f"{_GROUPS}.numOfHosts", "spec.replicas"),
    Row(f"{_GROUPS}.minReplicas", "spec.elasticPolicy.minReplicas", "with autoscaling"),
    Row(f"{_GROUPS}.maxReplicas", "spec.elasticPolicy.maxReplicas", "with autoscaling"),
    Row(f"{_GROUPS}.template", "spec.template", "see pods; without command and args"),
    Row(f"{_GROUPS}.*", "", _RAY),
)
_TO_CHANGE = (
    "spec.template.spec.containers[trainer].command: a script for Ray has to be changed: each rank "
    "calls the function of train_loop_per_worker itself, with torch.distributed and "
    "DistributedDataParallel instead of ray.train"
)
_NO_AUTOSCALING = "it counts with autoscaling alone"


def convert(source: Source, scripts: Mapping[str, str], options: ConvertOptions) -> Draft:
    """The TrainingJob of a RayJob. `scripts`: texts of files by their name, as far as they are
    known. Raises Refusal.
    """
    draft = Draft()
    take_metadata(source, draft, options)
    if source.get("spec", "clusterSelector") is not None:
        raise source.refuse(
            ("spec", "clusterSelector"), "it names a cluster of Ray, and a job brings its own pods"
        )
    _put_policy(source, draft)
    group = _group(source)
    place = (*group, "template")
    pod = _pod(source, place)
    _add_variables(source, pod)
    launch = take_launch(source, ("spec", "entrypoint"), pod, options)
    _require_ray_train(source, launch.command, scripts)
    replicas, bounds = _replicas(source, group)
    ranks: Ranks = "auto" if GPU in pod.limits else 1
    size = Size(replicas, bounds, ranks, source.number("spec", "backoffLimit"))
    put_size(draft, size, launch, pod, lambda text: source.remark(("spec", "entrypoint"), text))
    pod.put(draft, launch.command)
    draft.checks.append(_TO_CHANGE)
    return draft


def _put_policy(source: Source, draft: Draft) -> None:
    draft.put("activeDeadlineSeconds", source.number("spec", "activeDeadlineSeconds"))
    draft.put("suspend", source.flag("spec", "suspend"))
    shuts = source.flag("spec", "shutdownAfterJobFinishes")
    if shuts is not None:
        draft.put("cleanPodPolicy", "All" if shuts else "None")


def _group(source: Source) -> Place:
    """The group of the workers; that of the head where it is alone. Raises Refusal."""
    place: Place = ("spec", "rayClusterSpec", "workerGroupSpecs")
    groups = source.sequence(*place)
    if len(groups) > 1:
        raise source.refuse(
            place, f"has {len(groups)} groups: workers of a job are alike: keep one"
        )
    if groups:
        source.mapping(*place, 0)
        return (*place, 0)
    head: Place = ("spec", "rayClusterSpec", "headGroupSpec")
    if not source.mapping(*head):
        raise source.refuse(("spec", "rayClusterSpec"), "has no pods: it says where to train")
    return head


def _pod(source: Source, place: Place) -> Pod:
    """The pod of a worker, with the entry point as its command."""
    pod = read_pod(source, place, take_layer(source, place, lambda _: True), "ray-worker")
    for part in ("command", "args"):
        for number, _ in enumerate(source.sequence(*place, "spec", "containers")):
            source.leave((*place, "spec", "containers", number, part), _DRIVER)
    text = source.text("spec", "entrypoint")
    pod.command, pod.args = (["sh", "-c", text] if text else []), []
    return pod


def _replicas(source: Source, group: Place) -> tuple[int, tuple[int, int] | None]:
    count, hosts = (source.number(*group, field) for field in ("replicas", "numOfHosts"))
    is_head = group[-1] == "headGroupSpec"
    times = 1 if hosts is None else hosts
    replicas = (1 if count is None or is_head else count) * times
    low, high = (source.number(*group, field) for field in ("minReplicas", "maxReplicas"))
    scales = source.flag("spec", "rayClusterSpec", "enableInTreeAutoscaling")
    if scales and low is not None and high is not None:
        return replicas, (low * times, high * times)
    for field in ("minReplicas", "maxReplicas"):
        source.leave((*group, field), _NO_AUTOSCALING)
    return replicas, None


def _require_ray_train(
    source: Source, command: tuple[str, ...], scripts: Mapping[str, str]
) -> None:
    """Raises Refusal when the script is known, and trains nothing with Ray."""
    name = command[1].rpartition("/")[2] if len(command) > 1 else ""
    if name in scripts and "TorchTrainer" not in scripts[name]:
        raise source.refuse(
            ("spec", "entrypoint"), f"{shorten(name)} uses no TorchTrainer: it is no training"
        )


def with_runtime_environment(job: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A RayJob whose `spec.runtimeEnvYAML`, a text, is replaced by what it says. Raises ValueError
    where it says nothing that can be read.
    """
    spec = job.get("spec")
    text = spec.get("runtimeEnvYAML") if isinstance(spec, Mapping) else None
    if not isinstance(text, str) or not isinstance(spec, Mapping):
        return job
    loader = None
    try:
        loader = BoundedLoader(text)
        value = loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"cannot be read as YAML: {shorten(explain(error)[1])}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return {**job, "spec": {**spec, "runtimeEnvYAML": value}}


def _add_variables(source: Source, pod: Pod) -> None:
    """Give the ranks `env_vars` of the runtime environment. Raises Refusal."""
    place: Place = ("spec", "runtimeEnvYAML", "env_vars")
    for key, value in source.mapping(*place).items():
        where = (*place, key)
        if is_of_ranks(key):
            source.leave(where, "the job sets it for each rank")
        elif not isinstance(key, str) or not isinstance(value, str):
            raise source.refuse(where, f"name and value must be texts, got {quote(value)}")
        else:
            source.take(*where)
            pod.variables = {**pod.variables, key: value}
