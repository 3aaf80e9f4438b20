"""`regroup plan`: what a model needs, what fits, and the job to submit."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console

from regroup.cli.calibrate import device, measure
from regroup.cli.cluster_options import Verb
from regroup.cli.manifest import Document, ManifestError, read_documents
from regroup.cli.validation import validate
from regroup.planning import plan_report
from regroup.planning.calibration import calibrated, require_device
from regroup.planning.choice import Candidate, Question, examine, plan
from regroup.planning.given_job import (
    GPT2_VOCABULARY,
    layout_of,
    trainer_of,
    vocabulary_of,
)
from regroup.planning.hardware import GPUS, Cluster, cluster
from regroup.planning.job_manifest import ModelRequest, manifest, model_section, refusal
from regroup.planning.layouts import Batch, Layout
from regroup.planning.transformer import Transformer, of_model, of_parameters
from regroup_operator.api.replica_groups import ranks_of_worker
from regroup_operator.api.spec import TrainingJobSpec
from regroup_trainer.protocol.config import PRESETS, VOCABULARIES, ModelConfig, TrainConfig

BATCH_TOKENS = 2**20
"""Default tokens of a global batch: between those of GPT-3 13B and 175B (Brown et al., 2020, table
2.1).
"""
EXIT_NOTHING_FITS = 1


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    params: float | None
    model: str | None
    nodes: int | None
    gpus_per_node: int | None
    gpu: str
    network_gigabits: float | None
    sequence_length: int | None
    global_batch_size: int | None
    vocabulary: int | None
    precision: str | None


@dataclass(frozen=True)
class Case:
    """A question to the planner, and the job that it is about."""

    question: Question
    request: ModelRequest
    name: str
    asked: Layout | None = None
    """The layout that a given file asks for."""


def _number(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN, which lies within every range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number: give a finite one", context, option)
    return value


@click.command(
    "plan",
    cls=Verb,
    examples=(
        "regroup plan --params 100e9 --nodes 8 --gpus-per-node 8 --gpu a100-80",
        "regroup plan --model llama:70b --nodes 16 --gpu h100-80",
        "regroup plan job.yaml --gpu l40s",
    ),
)
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--params",
    type=click.FloatRange(min=0, min_open=True),
    callback=_number,
    help="Number of parameters, such as 100e9.",
)
@click.option("--model", help="A preset, such as gpt:1.3b or llama:70b.")
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Number of machines.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, 1024),
    help="Devices of a machine.  [default: as usual for the device]",
)
@click.option(
    "--gpu",
    type=click.Choice(list(GPUS)),
    default="a100-80",
    show_default=True,
    help="Kind of device.",
)
@click.option(
    "--network-gbits",
    "network_gigabits",
    type=click.FloatRange(0.001, 1e6),
    callback=_number,
    help="Network bandwidth of a machine.",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(2, 2**20),
    help="Tokens of a sample.  [default: 2048]",
)
@click.option(
    "--global-batch-size",
    type=click.IntRange(1, 2**20),
    help="Samples of a step.  [default: 2^20 tokens]",
)
@click.option("--vocabulary", type=click.IntRange(2, 2**24), help="Tokens that the model knows.")
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp32"]),
    help="Precision of forward and backward.  [default: bf16 where the device has it]",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure how fast this machine computes and communicates, and plan with that.",
)
@click.option("--json", "as_json", is_flag=True, help="All figures, for programs.")
def plan_command(file: Path | None, as_json: bool, calibrate: bool, **options: Any) -> None:
    """Show what a model needs: memory, communication and time of each layout, what fits, and the
    job to submit.

    Give --params, or --model, or a FILE with a TrainingJob.

    Exit codes: 0 something fits, 1 nothing does.
    """
    case = _case(file, Options(**options))
    if calibrate:
        case = _calibrated(case)
    result = plan(case.question, lambda layout: refusal(case.question, case.request, layout))
    asked = _asked(case)
    chosen = result.recommended
    job = manifest(case.question, case.request, chosen, case.name) if chosen else ""
    if as_json:
        click.echo(json.dumps(plan_report.as_json(result, job, asked), indent=2))
    else:
        plan_report.show(
            result, Console(width=None if sys.stdout.isatty() else plan_report.WIDTH), job, asked
        )
    sys.exit(0 if chosen else EXIT_NOTHING_FITS)


def _calibrated(case: Case) -> Case:
    """The case on machines as fast as this one. Raises click.ClickException."""
    question = case.question
    try:
        require_device(question.cluster.gpu.name, device())
        found = measure(
            case.request.model, question.batch.sequence_length, question.cluster.gpus_per_node
        )
        cluster = calibrated(question.cluster, found)
    except ValueError as error:
        raise click.ClickException(f"--calibrate: {error}") from None
    return replace(case, question=replace(question, cluster=cluster))


def _asked(case: Case) -> Candidate | None:
    return examine(case.question, case.asked) if case.asked else None


def _case(file: Path | None, options: Options) -> Case:
    given = [
        name
        for name, value in (
            ("--params", options.params),
            ("--model", options.model),
            ("FILE", file),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise click.UsageError(
            f"give one of --params, --model or FILE, got {' and '.join(given) or 'none'}"
        )
    if file is not None:
        return _case_of_job(_document(file), options)
    return _case_of_parameters(options) if options.model is None else _case_of_model(options)


def _case_of_parameters(options: Options) -> Case:
    vocabulary = options.vocabulary or GPT2_VOCABULARY
    try:
        model = of_parameters(options.params or 0, vocabulary)
    except ValueError as error:
        raise click.UsageError(f"--params {options.params:g}: {error}") from None
    size = {"layers": model.layers, "heads": model.heads, "width": model.width}
    return _made_case(
        model,
        ModelRequest({"name": "gpt", "dimensions": size}),
        f"gpt-{_short(model.parameters)}",
        options,
    )


def _case_of_model(options: Options) -> Case:
    name, _, preset = (options.model or "").partition(":")
    try:
        config = ModelConfig.model_validate({"name": name, "preset": preset})
        model = of_model(
            config, options.vocabulary or VOCABULARIES.get(name, {}).get(preset, GPT2_VOCABULARY)
        )
    except (ValidationError, ValueError):
        known = ", ".join(f"{name}:{preset}" for name in VOCABULARIES for preset in PRESETS[name])
        raise click.UsageError(f"--model {options.model}: is unknown: use one of {known}") from None
    job = f"{name}-{preset}".replace(".", "-")
    return _made_case(model, ModelRequest(model_section(config)), job, options)


def _made_case(model: Transformer, request: ModelRequest, name: str, options: Options) -> Case:
    if options.nodes is None:
        raise click.UsageError("--nodes: is missing: give the number of machines")
    machines = _cluster(options, options.nodes, options.gpus_per_node, options.precision)
    length = options.sequence_length or 2048
    samples = options.global_batch_size or max(machines.devices, BATCH_TOKENS // length)
    return Case(Question(model, Batch(samples, length), machines), request, name)


def _cluster(
    options: Options, nodes: int, gpus_per_node: int | None, precision: str | None
) -> Cluster:
    gpu = GPUS[options.gpu]
    if precision == "bf16" and gpu.bf16_flops is None:
        raise click.UsageError(
            f"--precision bf16: a {gpu.name} has fp32 only: leave it out, or take another --gpu"
        )
    try:
        return cluster(
            gpu.at_precision(precision or "bf16"), nodes, gpus_per_node, options.network_gigabits
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _case_of_job(document: Document, options: Options) -> Case:
    spec = TrainingJobSpec.model_validate(document.value["spec"])
    try:
        config = trainer_of(spec)
        model = of_model(config.model, vocabulary_of(config, options.vocabulary))
        machines = _machines_of_job(spec, config, options)
        layout = layout_of(config, machines)
    except ValueError as error:
        raise click.UsageError(f"{document.file}: {error}") from None
    batch = Batch(
        options.global_batch_size or config.training.global_batch_size,
        options.sequence_length or config.training.sequence_length,
        config.model.loss_chunks,
    )
    request = ModelRequest(model_section(config.model), document.value["spec"])
    asked = replace(layout, micro_batch=layout.samples(batch))  # what its ranks will run
    return Case(Question(model, batch, machines), request, document.name, asked)


def _machines_of_job(spec: TrainingJobSpec, config: TrainConfig, options: Options) -> Cluster:
    """Raises ValueError for a precision of the job that the device does not have."""
    gpu = GPUS[options.gpu]
    precision = options.precision or config.training.precision
    if options.precision is None and precision == "bf16" and gpu.bf16_flops is None:
        raise ValueError(
            f"spec.trainer.training.precision bf16: a {gpu.name} has fp32 only: give --precision "
            "fp32, or another --gpu"
        )
    devices = options.gpus_per_node or ranks_of_worker(spec)
    return _cluster(options, options.nodes or spec.replicas, devices, precision)


def _document(file: Path) -> Document:
    try:
        documents = read_documents(file)
    except (ManifestError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if len(documents) != 1:
        raise click.ClickException(f"{file}: holds {len(documents)} jobs; plan takes one")
    if problems := validate(documents[0]):
        raise click.ClickException("\n".join(str(problem) for problem in problems))
    return documents[0]


def _short(parameters: int) -> str:
    for unit, name in ((10**9, "b"), (10**6, "m")):
        if parameters >= unit:
            return f"{parameters / unit:.0f}{name}"
    return f"{parameters / 1000:.0f}k"
