"""Writes a layout as a TrainingJob, and checks whether the trainer accepts it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from regroup.planning.choice import Candidate, Question, fewest_nodes
from regroup.planning.given_job import GPT2_VOCABULARY
from regroup.planning.layouts import Grid, Layout
from regroup_operator.api.replica_groups import GPU
from regroup_operator.api.resource import API_VERSION, KIND
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.support import unsupported
from regroup_trainer.protocol.config import ModelConfig
from regroup_trainer.protocol.message import quote
from regroup_trainer.protocol.strategies import STRATEGIES

DATA_FOLDER = "/data"
STEPS = 10_000
_GRID_FIELDS = (
    "strategy", "shardGroupSize", "tensorParallel", "pipelineParallel", "contextParallel",
)  # fmt: skip


@dataclass(frozen=True)
class ModelRequest:
    """What the job is to train, apart from its layout."""

    model: dict[str, Any]
    """As in `trainer.model`."""
    base: dict[str, Any] | None = None
    """The spec of a given job, in which only sizes and layout are replaced."""


def refusal(question: Question, request: ModelRequest, layout: Layout) -> str:
    """Why a job of this layout would be refused; empty when it would be accepted."""
    try:
        spec = TrainingJobSpec.model_validate(
            _spec(question, request, layout, question.cluster.nodes)
        )
    except ValidationError as error:
        return _first_problem(error)
    return "; ".join([*unsupported(spec), *_refused_by_ranks(spec)])


def _first_problem(error: ValidationError) -> str:
    """The field, its value unless the message has it, and what is wrong."""
    found = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(["spec", *map(str, found["loc"])])
    if found["type"] == "value_error":
        return f"{field}: {found['msg'].removeprefix('Value error, ')}"
    return f"{field} is {quote(found['input'])}: {found['msg']}"


def _refused_by_ranks(spec: TrainingJobSpec) -> Iterator[str]:
    """What a spec may ask for, and the trainer refuses once it wraps the model."""
    config = spec.trainer
    if config is None:
        return
    layout, chunks = config.parallelism, config.model.loss_chunks
    if chunks > 1 and layout.tensor_parallel * layout.pipeline_parallel > 1:
        yield f"spec.trainer.model.lossChunks {chunks} needs the whole head on each rank"
    whole = layout.tensor_parallel == 1 and not STRATEGIES[layout.strategy].shards_optimizer_alone
    if config.optimizer.name == "muon" and not whole:
        yield "spec.trainer.optimizer.name muon needs whole matrices, or those of fsdp and hsdp"


def manifest(question: Question, request: ModelRequest, chosen: Candidate, name: str) -> str:
    """The TrainingJob as YAML. Its minReplicas are the fewest machines that hold the model."""
    per_group = nodes_per_group(chosen.layout.grid, question.cluster.gpus_per_node)
    fewest = fewest_nodes(question, chosen, per_group)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": _spec(question, request, chosen.layout, fewest),
    }
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)


def nodes_per_group(grid: Grid, gpus_per_node: int) -> int:
    """Machines that together hold one copy of the model."""
    shard_group = grid.shard if grid.kind.has_shard_groups else 1
    ranks = grid.ranks_per_row * shard_group
    return math.lcm(ranks, gpus_per_node) // gpus_per_node


def model_section(model: ModelConfig) -> dict[str, Any]:
    """The section `trainer.model` of a job."""
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {
        "name": model.name
    }


def _spec(question: Question, request: ModelRequest, layout: Layout, fewest: int) -> dict[str, Any]:
    cluster = question.cluster
    if request.base is not None:
        return _changed(request.base, question, layout, fewest)
    spec: dict[str, Any] = {"replicas": cluster.nodes, "nprocPerNode": cluster.gpus_per_node}
    if not cluster.gpu.is_cpu:
        spec["resources"] = {"limits": {"nvidia.com/gpu": cluster.gpus_per_node}}
    if fewest < cluster.nodes:
        spec["elasticPolicy"] = {"minReplicas": fewest, "maxReplicas": cluster.nodes}
    spec["checkpoint"] = {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}}
    spec["trainer"] = {
        "model": request.model,
        "data": _data(question.model.vocabulary),
        "parallelism": _parallelism(layout.grid),
        "training": {"steps": STEPS, **_training(question, layout)},
    }
    if question.model.vocabulary != 256:
        spec["template"] = _mount()
    return spec


def _data(vocabulary: int) -> dict[str, Any]:
    if vocabulary == 256:
        return {"source": "text"}
    tokens: dict[str, Any] = {"source": "tokens", "paths": [DATA_FOLDER]}
    return tokens if vocabulary == GPT2_VOCABULARY else {**tokens, "classes": vocabulary}


def _mount() -> dict[str, Any]:
    return {
        "spec": {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}
            ],
            "containers": [
                {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": DATA_FOLDER}]}
            ],
        }
    }


def _parallelism(grid: Grid) -> dict[str, Any]:
    section: dict[str, Any] = {"strategy": grid.strategy}
    if grid.kind.has_shard_groups:
        section["shardGroupSize"] = grid.shard
    if grid.tensor > 1:
        section["tensorParallel"] = grid.tensor
    if grid.pipeline > 1:
        section["pipelineParallel"] = grid.pipeline
    if grid.context > 1:
        section["contextParallel"] = grid.context
    return section


def _changed(
    base: dict[str, Any], question: Question, layout: Layout, fewest: int
) -> dict[str, Any]:
    """A given spec with other sizes. Options of parallelism that are no size stay, so that a layout
    in which they have no meaning is refused.
    """
    nodes, devices = question.cluster.nodes, question.cluster.gpus_per_node
    trainer = base["trainer"]
    training = {**(trainer.get("training") or {}), **_training(question, layout)}
    if layout.checkpointing == "none":
        training.pop("activationCheckpointing", None)
    given = trainer.get("parallelism") or {}
    options = {field: value for field, value in given.items() if field not in _GRID_FIELDS}
    shared = {"parallelism": _parallelism(layout.grid) | options, "training": training}
    changed = {**base, "replicas": nodes, "nprocPerNode": devices, "trainer": {**trainer, **shared}}
    limits = (base.get("resources") or {}).get("limits") or {}
    if GPU in limits:
        changed["resources"] = {**base["resources"], "limits": {**limits, GPU: devices}}
    if base.get("elasticPolicy"):
        group = nodes_per_group(layout.grid, devices)
        changed["elasticPolicy"] = _bounds(base["elasticPolicy"], nodes, fewest, group)
    return changed


def _bounds(policy: dict[str, Any], nodes: int, fewest: int, group: int) -> dict[str, Any]:
    """The given bounds, moved where the layout does not fit fewer machines, or more are planned.

    The size of a replica group follows from the layout.
    """
    wanted = max(policy.get("minReplicas") or nodes, fewest)
    bounds = {
        "minReplicas": min(nodes, math.ceil(wanted / group) * group),
        "maxReplicas": max(policy.get("maxReplicas") or nodes, nodes),
    }
    rest = {field: value for field, value in policy.items() if field != "replicaGroupSize"}
    return rest | bounds


def _training(question: Question, layout: Layout) -> dict[str, Any]:
    section: dict[str, Any] = {
        "globalBatchSize": question.batch.samples,
        "microBatchSize": layout.micro_batch,
        "sequenceLength": question.batch.sequence_length,
        "precision": question.cluster.gpu.precision,
    }
    if layout.checkpointing != "none":
        section["activationCheckpointing"] = layout.checkpointing
    return section
