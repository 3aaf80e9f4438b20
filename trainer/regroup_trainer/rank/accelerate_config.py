"""The config file of accelerate (`--config_file`), read where a rank starts: each key is applied,
or refused by name.

The library itself is not imported. Keys are those of accelerate 1.15 (commands/config/config_args).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.accelerate_settings import (
    REFUSED_GROUPS,
    SETTINGS,
    AccelerateLaunch,
    Value,
    checked,
    variables,
)
from regroup_trainer.protocol.message import quote, shorten

SIZE_LIMIT = 65_536
"""Bytes of the largest file that is read."""
_SECTIONS = {
    "dynamo_config": "dynamo_",
    "fsdp_config": "fsdp_",
    "fp8_config": "fp8_",
    "parallelism_config": "parallelism_config_",
}
"""Section -> how the settings in it begin. accelerate lets the beginning be left out."""
_REFUSED_SECTIONS = {
    "deepspeed_config": REFUSED_GROUPS["deepspeed"],
    "megatron_lm_config": REFUSED_GROUPS["megatron"],
    "mpirun_config": REFUSED_GROUPS["mpi"],
}
_MEETING = "the job brings its own rendezvous: leave it out"
_HARMLESS: dict[str, tuple[tuple[object, ...], str]] = {
    "compute_environment": (("LOCAL_MACHINE",), REFUSED_GROUPS["sagemaker"]),
    "machine_rank": ((0,), _MEETING),
    "main_process_ip": ((), _MEETING),
    "main_process_port": ((0,), _MEETING),
    "rdzv_backend": (("static", "c10d"), _MEETING),
    "same_network": ((True, False), _MEETING),
    "gpu_ids": (("all",), "the GPU limit of the worker says which GPUs it has: write all"),
    "main_training_function": (("main",), REFUSED_GROUPS["tpu"]),
    "downcast_bf16": ((False, "no"), REFUSED_GROUPS["tpu"]),
    "tpu_use_cluster": ((False,), REFUSED_GROUPS["tpu"]),
    "tpu_use_sudo": ((False,), REFUSED_GROUPS["tpu"]),
    **dict.fromkeys(
        ("tpu_name", "tpu_zone", "tpu_vm", "tpu_env", "command_file", "commands"),
        (([],), REFUSED_GROUPS["tpu"]),
    ),
}
"""Key that nothing reads -> the values that ask for nothing, and what to do about others.
`accelerate config` writes several of them into every file.
"""
_BACKENDS: dict[str, dict[str, Value]] = {
    "NO": {},
    "MULTI_CPU": {},
    "FSDP": {"use_fsdp": True},
    **{
        f"MULTI_{device}": {"multi_gpu": True}
        for device in ("GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU", "NEURON")
    },
}
"""distributed_type -> the settings that mean the same."""
_COUNTS = ("num_processes", "num_machines")


@dataclass(frozen=True)
class JobSize:
    """How many ranks the job starts."""

    fewest: int
    """Workers."""
    most: int
    wanted: int
    ranks: int
    """Of a worker."""


def environment(launch: AccelerateLaunch, job: JobSize) -> dict[str, str]:
    """The variables of the ranks that a command with a config file asks for.

    Raises ConfigurationError, which names the key, the file and what to do.
    """
    path = Path(launch.config_file)
    try:
        document = _parse(path, _read(path))
        settings = _settings(document, launch.settings)
        _require_size({**_counts(document), **launch.counts}, job)
        return variables(settings)
    except ValueError as error:
        raise ConfigurationError(f"--config_file {path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ValueError(
                f"it is no file on this worker (working directory {Path.cwd()}): mount it, or give "
                "the path where the image has it"
            )
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if len(content) > SIZE_LIMIT:
        raise ValueError(f"it has more than {SIZE_LIMIT} bytes: give a file of `accelerate config`")
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    read = _read_json if path.suffix == ".json" else _yaml_reader()
    try:
        document = read(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is neither YAML nor, as .json, JSON: {shorten(str(error))}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ValueError("it holds no keys with values: give a file of `accelerate config`")
    return document


def _read_json(content: bytes) -> object:
    return json.loads(content, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a key that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {quote(twice)} stands twice")
    return found


def _yaml_reader() -> Callable[[bytes], object]:
    try:
        import yaml  # accelerate brings it; not every image has it
    except ImportError:
        raise ValueError("PyYAML is missing in this image: install it, or write JSON") from None
    from regroup_trainer.system.bounded_yaml import BoundedLoader, explain

    def read(content: bytes) -> object:
        try:
            return yaml.load(content, BoundedLoader)
        except yaml.YAMLError as error:
            line, problem = explain(error)
            raise ValueError(f"line {line}: {problem}") from None

    return read


def _settings(document: Mapping[str, Any], given: Mapping[str, Value]) -> dict[str, Value]:
    """The settings of the file, and above them those of the command line."""
    found: dict[str, Value] = {}
    for key, value in document.items():
        if value is None or key in _COUNTS or key in ("distributed_type", "use_cpu"):
            continue
        if key in _SECTIONS:
            _add(found, key, _section(key, value))
        elif key == "dynamo_backend" or key in ("mixed_precision", "debug", "enable_cpu_affinity"):
            setting = _setting(key, key, "no" if value is False else value)
            _add(found, key, [(key, setting)])
        elif key == "fp16":  # of files before 0.9
            found.setdefault("mixed_precision", "fp16" if value is True else "no")
        else:
            _require_harmless(key, value)
    found |= _paradigm(document, given)
    return {**found, **given}


def _add(found: dict[str, Value], section: str, settings: Iterable[tuple[str, Value]]) -> None:
    """Take the settings of a section. Raises ValueError for one that stands twice in the file."""
    for name, value in settings:
        if name in found:
            raise ValueError(f"{section}: {name} stands twice: keep one of them")
        found[name] = value


def _section(key: str, value: object) -> Iterator[tuple[str, Value]]:
    if not isinstance(value, dict):
        raise ValueError(f"{key}: it holds no keys with values: leave it out")
    for part, content in value.items():
        given = part if isinstance(part, str) else quote(part)
        name = given if given.startswith(_SECTIONS[key]) else f"{_SECTIONS[key]}{given}"
        if name not in SETTINGS:
            raise ValueError(f"{key}.{shorten(given)}: accelerate has no such setting: remove it")
        if content is not None:
            yield name, _setting(f"{key}.{part}", name, content)


def _setting(key: str, name: str, value: object) -> Value:
    if name == "fp8_override_linear_precision" and isinstance(value, list):
        value = ",".join(_shown(part) for part in value[:4])
    if not isinstance(value, bool | int | str):
        raise ValueError(f"{key}: it holds a {type(value).__name__}: give one plain value")
    try:
        return checked(name, value)
    except ValueError as error:
        raise ValueError(f"{key}: {_shown(value)}: {error}") from None


def _shown(value: object) -> str:
    return shorten(value) if isinstance(value, str) else quote(value)


def _require_harmless(key: str, value: object) -> None:
    if key in _REFUSED_SECTIONS:
        if value:
            raise ValueError(f"{key}: {_REFUSED_SECTIONS[key]}")
        return
    if key not in _HARMLESS:
        raise ValueError(f"{shorten(key)}: accelerate has no such key: remove it")
    values, why = _HARMLESS[key]
    if value not in values:
        raise ValueError(f"{key}: {_shown(value)}: {why}")


def _paradigm(document: Mapping[str, Any], given: Mapping[str, Value]) -> dict[str, Value]:
    """What the file says of the back end, where the command line does not."""
    named = document.get("distributed_type", "NO")
    backend = "NO" if named is False else _shown(named)
    if backend not in _BACKENDS:
        why = REFUSED_GROUPS["megatron" if backend == "MEGATRON_LM" else "deepspeed"]
        if backend not in ("DEEPSPEED", "MEGATRON_LM"):
            why = f"give one of {', '.join(_BACKENDS)}"
        raise ValueError(f"distributed_type: {backend}: {why}")
    if {"multi_gpu", "use_fsdp"} & given.keys():
        return {}
    found = dict(_BACKENDS[backend])
    if document.get("parallelism_config"):
        found["use_parallelism_config"] = True
    is_cpu = _setting("use_cpu", "cpu", document.get("use_cpu") or False)
    return found or {"cpu": is_cpu}


def _counts(document: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for key in _COUNTS:
        value = document.get(key)
        if value is None or (key == "num_processes" and value == -1):  # -1: not given
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
            raise ValueError(f"{key}: {_shown(value)}: give a whole number from 1")
        found[key] = value
    return found


def _require_size(counts: Mapping[str, int], job: JobSize) -> None:
    workers = f"{job.fewest} to {job.most} workers of {job.ranks} ranks"
    machines = counts.get("num_machines", job.wanted)
    if not job.fewest <= machines <= job.most:
        raise ValueError(
            f"num_machines: {machines}, and the job has {workers}: write {job.wanted}, or leave it "
            "out"
        )
    processes = counts.get("num_processes", machines * job.ranks)
    if processes != machines * job.ranks:
        raise ValueError(
            f"num_processes: {processes} in all on {machines} machines, and the job has {workers}: "
            f"write {machines * job.ranks}, or set spec.nprocPerNode"
        )
