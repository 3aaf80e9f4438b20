"""What `accelerate launch` and its config file may set, and the environment variables that follow.
Pure.

Written after accelerate 1.15 (commands/launch.py, utils/launch.py). A test compares the variables
with those of the real library. A setting is named as the library names its flag, with underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from regroup_trainer.protocol.message import TEXT_LIMIT, Message, Name, Text, quote

Value = bool | int | str
Kind = Literal["text", "number", "switch", "boolean", "bit", "bits"]
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})
_MOST = 10**15


class AccelerateLaunch(Message):
    """A command of accelerate whose variables only a rank can know, since a file says more."""

    config_file: Text
    """Its path on the worker."""
    settings: dict[Name, bool | int | Text] = Field(default_factory=dict)
    """What the command line says. It wins over the file."""
    counts: dict[Name, int] = Field(default_factory=dict)
    """`num_processes` and `num_machines` of the command line."""


@dataclass(frozen=True)
class Setting:
    """A setting that is supported."""

    kind: Kind = "text"
    default: Value | None = None
    """What the library takes where nobody says anything; None: no variable."""
    choices: tuple[str, ...] = ()
    variable: str = ""
    """The variable that shows it, where there is always one."""
    fewest: int = -_MOST
    """The least number."""
    lower: bool = False
    """Whether the variable shows it in small letters."""


def _fsdp(variable: str, **fields: object) -> Setting:
    return Setting(variable=f"FSDP_{variable}", **fields)  # type: ignore[arg-type]


def _switch_of_fsdp(variable: str, default: str) -> Setting:
    return _fsdp(variable, kind="boolean", default=default, lower=True)


def _dynamo(variable: str) -> Setting:
    return Setting("switch", False, variable=f"ACCELERATE_DYNAMO_{variable}")


def _fp8(variable: str, **fields: object) -> Setting:
    return Setting(variable=f"ACCELERATE_FP8_{variable}", **fields)  # type: ignore[arg-type]


def _degree(variable: str) -> Setting:
    return Setting("number", 1, variable=f"PARALLELISM_CONFIG_{variable}_SIZE", fewest=1)


def _parallel(variable: str, **fields: object) -> Setting:
    return Setting(variable=f"PARALLELISM_CONFIG_{variable}", **fields)  # type: ignore[arg-type]


_ALWAYS = {
    "mixed_precision": Setting(
        default="no",
        choices=("no", "fp16", "bf16", "fp8"),
        variable="ACCELERATE_MIXED_PRECISION",
        lower=True,
    ),
    "dynamo_backend": Setting(
        default="no",
        choices=(
            "no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser",
            "cudagraphs", "ofi", "fx2trt", "onnxrt", "tensorrt", "aot_torchxla_trace_once",
            "torchxla_trace_once", "tvm", "hpu_backend", "neuron",
        ),
    ),
    "dynamo_mode": Setting(
        default="default",
        choices=("default", "reduce-overhead", "max-autotune"),
        variable="ACCELERATE_DYNAMO_MODE",
    ),
    "dynamo_use_fullgraph": _dynamo("USE_FULLGRAPH"),
    "dynamo_use_dynamic": _dynamo("USE_DYNAMIC"),
    "dynamo_use_regional_compilation": _dynamo("USE_REGIONAL_COMPILATION"),
}  # fmt: skip
_FSDP = {
    "fsdp_version": _fsdp("VERSION", default="1", choices=("1", "2")),
    "fsdp_sharding_strategy": _fsdp("SHARDING_STRATEGY", default="FULL_SHARD"),
    "fsdp_reshard_after_forward": _fsdp("RESHARD_AFTER_FORWARD", default="true", lower=True),
    "fsdp_offload_params": _switch_of_fsdp("OFFLOAD_PARAMS", "false"),
    "fsdp_min_num_params": _fsdp("MIN_NUM_PARAMS", kind="number", default=100_000_000),
    "fsdp_auto_wrap_policy": _fsdp("AUTO_WRAP_POLICY"),
    "fsdp_transformer_layer_cls_to_wrap": _fsdp("TRANSFORMER_CLS_TO_WRAP"),
    "fsdp_backward_prefetch": _fsdp("BACKWARD_PREFETCH"),
    "fsdp_state_dict_type": _fsdp("STATE_DICT_TYPE"),
    "fsdp_forward_prefetch": _switch_of_fsdp("FORWARD_PREFETCH", "false"),
    "fsdp_use_orig_params": _switch_of_fsdp("USE_ORIG_PARAMS", "true"),
    "fsdp_cpu_ram_efficient_loading": _switch_of_fsdp("CPU_RAM_EFFICIENT_LOADING", "true"),
    "fsdp_sync_module_states": _switch_of_fsdp("SYNC_MODULE_STATES", "true"),
    "fsdp_activation_checkpointing": _switch_of_fsdp("ACTIVATION_CHECKPOINTING", "false"),
    "fsdp_activation_checkpointing_offload": _switch_of_fsdp(
        "ACTIVATION_CHECKPOINTING_OFFLOAD", "false"
    ),
}
_FP8 = {
    "fp8_backend": _fp8("BACKEND", choices=("ao", "te", "msamp")),
    "fp8_use_autocast_during_eval": _fp8("USE_AUTOCAST_DURING_EVAL", kind="switch", default=False),
    "fp8_margin": _fp8("MARGIN", kind="number", default=0),
    "fp8_interval": _fp8("INTERVAL", kind="number", default=1),
    "fp8_format": _fp8("FORMAT", default="HYBRID", choices=("HYBRID", "E4M3", "E5M2")),
    "fp8_amax_history_len": _fp8("AMAX_HISTORY_LEN", kind="number", default=1024),
    "fp8_amax_compute_algo": _fp8(
        "AMAX_COMPUTE_ALGO", default="most_recent", choices=("max", "most_recent")
    ),
    "fp8_override_linear_precision": Setting("bits", "False,False,False"),
    "fp8_opt_level": _fp8("OPT_LEVEL", default="O2", choices=("O1", "O2")),
    "fp8_enable_fsdp_float8_all_gather": _fp8(
        "ENABLE_FSDP_FLOAT8_ALL_GATHER", kind="bit", default=1
    ),
    "fp8_pad_inner_dim": _fp8("PAD_INNER_DIM", kind="bit", default=1),
}
_PARALLELISM = {
    "parallelism_config_dp_replicate_size": _degree("DP_REPLICATE"),
    "parallelism_config_dp_shard_size": _degree("DP_SHARD"),
    "parallelism_config_tp_size": _degree("TP"),
    "parallelism_config_cp_size": _degree("CP"),
    "parallelism_config_cp_backend": _parallel("CP_BACKEND", default="torch", choices=("torch",)),
    "parallelism_config_sp_size": _degree("SP"),
    "parallelism_config_sp_backend": _parallel(
        "SP_BACKEND", default="deepspeed", choices=("deepspeed",)
    ),
}
_CONTEXT_PARALLEL = {
    "parallelism_config_cp_comm_strategy": _parallel("CP_COMM_STRATEGY", default="allgather"),
}
_SEQUENCE_PARALLEL = {
    "parallelism_config_sp_seq_length": _parallel("SP_SEQ_LENGTH", default="None"),
    "parallelism_config_sp_seq_length_is_variable": _parallel(
        "SP_SEQ_LENGTH_IS_VARIABLE", kind="boolean", default=True
    ),
    "parallelism_config_sp_attn_implementation": _parallel(
        "SP_ATTN_IMPLEMENTATION", default="sdpa"
    ),
}
_SWITCHES = (
    "cpu", "multi_gpu", "use_fsdp", "use_parallelism_config", "debug", "enable_cpu_affinity",
)  # fmt: skip
SETTINGS: Mapping[str, Setting] = {
    **{name: Setting("switch", False) for name in _SWITCHES},
    "num_cpu_threads_per_process": Setting("number", fewest=1),
    **_ALWAYS,
    **_FSDP,
    **_FP8,
    **_PARALLELISM,
    **_CONTEXT_PARALLEL,
    **_SEQUENCE_PARALLEL,
}
"""All that a variable can carry."""
REFUSED_GROUPS = {
    "deepspeed": "DeepSpeed brings its own launcher: use FSDP (--use_fsdp)",
    "megatron": "Megatron-LM is not supported: use FSDP (--use_fsdp)",
    "tpu": "TPUs are not supported: leave it out",
    "sagemaker": "SageMaker starts jobs of its own: leave it out",
    "mpi": "the job starts the ranks, without MPI: leave it out",
}
"""Why the settings of other back ends are not supported, and what to do."""


def checked(name: str, value: Value) -> Value:
    """The value as the variables need it. Raises ValueError, which says what to give instead."""
    setting = SETTINGS[name]
    if setting.kind == "switch":
        return _switch(value)
    if setting.kind == "bit":
        return int(_switch(value))
    if setting.kind == "number":
        return _number(value, setting.fewest)
    text = value if isinstance(value, str) else quote(value)
    if not text or len(text) > TEXT_LIMIT or not text.isprintable():
        raise ValueError(f"give one to {TEXT_LIMIT} printable characters")
    if setting.kind == "boolean":
        _switch(value)
        return value
    if setting.kind == "bits":
        return ",".join(str(int(_switch(part))) for part in _three(text))
    if setting.choices:
        return _choice(text, setting.choices)
    return value


def _switch(value: Value) -> bool:
    text = (value if isinstance(value, str) else quote(value)).lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError("give true or false")


def _number(value: Value, fewest: int) -> int:
    text = quote(value) if isinstance(value, int) else value
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 16 and int(text) >= fewest:
        return int(text)
    least = f" from {fewest} and" if fewest > -_MOST else ""
    raise ValueError(f"give a whole number{least} below {_MOST}")


def _three(text: str) -> list[str]:
    parts = text.split(",")
    if len(parts) != 3:
        raise ValueError("give three of true or false, with commas between them")
    return parts


def _choice(text: str, choices: Iterable[str]) -> str:
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(f"give one of {', '.join(choices)}")


def variables(given: Mapping[str, Value]) -> dict[str, str]:
    """The environment variables of the ranks, where `given` are checked settings.

    Raises ValueError for settings that exclude each other.
    """
    _require_together(given)
    is_simple = _get(given, "cpu") is True or not (
        _get(given, "multi_gpu") or _get(given, "use_fsdp")
    )
    found = _shown(_ALWAYS, given)
    found["ACCELERATE_DYNAMO_BACKEND"] = str(_get(given, "dynamo_backend")).upper()
    if _get(given, "debug"):
        found["ACCELERATE_DEBUG_MODE"] = "true"
    if _get(given, "enable_cpu_affinity"):
        found["ACCELERATE_CPU_AFFINITY"] = "1"
    if "num_cpu_threads_per_process" in given:
        found["OMP_NUM_THREADS"] = str(given["num_cpu_threads_per_process"])
    if _get(given, "mixed_precision") == "fp8":
        found |= _of_fp8(given)
    if is_simple:
        return found | _of_processor(given)
    if _get(given, "use_fsdp"):
        found |= {"ACCELERATE_USE_FSDP": "true", **_shown(_FSDP, given)}
    if _get(given, "use_parallelism_config"):
        found |= _of_parallelism(given)
    return found


def _of_processor(given: Mapping[str, Value]) -> dict[str, str]:
    is_cpu = bool(_get(given, "cpu"))
    threads = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    return {"ACCELERATE_USE_CPU": str(is_cpu), **(threads if is_cpu else {})}


def _of_fp8(given: Mapping[str, Value]) -> dict[str, str]:
    parts = str(_get(given, "fp8_override_linear_precision")).split(",")
    names = ("FPROP", "DGRAD", "WGRAD")
    override = {
        f"ACCELERATE_FP8_OVERRIDE_{name}": part for name, part in zip(names, parts, strict=True)
    }
    return {**_shown(_FP8, given), **override}


def _of_parallelism(given: Mapping[str, Value]) -> dict[str, str]:
    found = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **_shown(_PARALLELISM, given)}
    if _degree_of(given, "cp") > 1:
        found |= _shown(_CONTEXT_PARALLEL, given)
    if _degree_of(given, "sp") > 1:
        found |= _shown(_SEQUENCE_PARALLEL, given)
    return found


def _degree_of(given: Mapping[str, Value], letters: str) -> int:
    return int(_get(given, f"parallelism_config_{letters}_size") or 1)


def _shown(settings: Mapping[str, Setting], given: Mapping[str, Value]) -> dict[str, str]:
    return {
        setting.variable: str(value).lower() if setting.lower else str(value)
        for name, setting in settings.items()
        if setting.variable and (value := _get(given, name)) is not None
    }


def _get(given: Mapping[str, Value], name: str) -> Value | None:
    return given.get(name, SETTINGS[name].default)


def _require_together(given: Mapping[str, Value]) -> None:
    if _get(given, "use_parallelism_config") and not (
        _get(given, "use_fsdp") and _get(given, "fsdp_version") == "2"
    ):
        raise ValueError(
            "use_parallelism_config: it needs FSDP of version 2: give use_fsdp and fsdp_version=2 "
            "as well"
        )
    loads_once = _get(given, "fsdp_cpu_ram_efficient_loading") is not False
    if _get(given, "use_fsdp") and loads_once and _get(given, "fsdp_sync_module_states") is False:
        raise ValueError(
            "fsdp_sync_module_states: false excludes fsdp_cpu_ram_efficient_loading: give true, or "
            "set fsdp_cpu_ram_efficient_loading to false"
        )
