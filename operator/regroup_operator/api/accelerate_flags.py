"""The command line of `accelerate launch` (accelerate 1.15), as a container's command: each flag is
applied, or refused by name. Pure.

Flags that count ranks and workers are held against the spec. What the script reads becomes
environment variables, as `accelerate_settings` says. The library's default config file is never
read: it belongs to the machine where it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regroup_operator.api.launcher_flags import (
    Flag,
    FlagError,
    FlagTable,
    FoundFlag,
    LaunchFlags,
    read_number,
)
from regroup_operator.api.torchrun_flags import (
    MEETING,
    MONITOR_INTERVAL,
    MOST_RANKS,
    MOST_WORKERS,
    TEE,
)
from regroup_trainer.protocol.accelerate_settings import (
    REFUSED_GROUPS,
    SETTINGS,
    AccelerateLaunch,
    Value,
    checked,
    variables,
)
from regroup_trainer.protocol.message import TEXT_LIMIT, shorten

MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_MOST_COUNTS = {"num_processes": MOST_WORKERS * MOST_RANKS, "num_machines": MOST_WORKERS}
_GPUS = "the GPU limit in spec.resources says which GPUs a worker has"
_TO_ACCELERATOR = (
    "accelerate passes it on to DeepSpeed alone: give it to Accelerator() in the script, or set "
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS in env"
)
_REFUSED = {
    **dict.fromkeys(
        (
            "use-deepspeed", "deepspeed-config-file", "zero-stage", "offload-optimizer-device",
            "offload-param-device", "offload-optimizer-nvme-path", "offload-param-nvme-path",
            "gradient-clipping", "zero3-init-flag", "zero3-save-16bit-model", "deepspeed-hostfile",
            "deepspeed-exclusion-filter", "deepspeed-inclusion-filter",
            "deepspeed-multinode-launcher", "deepspeed-moe-layer-cls-names",
        ),
        REFUSED_GROUPS["deepspeed"],
    ),
    **dict.fromkeys(
        (
            "use-megatron-lm",
            *(
                f"megatron-lm-{name}"
                for name in (
                    "tp-degree", "use-custom-fsdp", "no-load-optim", "eod-mask-loss",
                    "overlap-cpu-optimizer-d2h-h2d", "no-save-optim", "optimizer-cpu-offload",
                    "use-precision-aware-optimizer", "decoder-last-pipeline-num-layers",
                    "pp-degree", "num-micro-batches", "sequence-parallelism",
                    "recompute-activations", "use-distributed-optimizer", "gradient-clipping",
                    "recompute-granularity", "recompute-method", "recompute-num-layers",
                    "attention-backend", "expert-model-parallel-size", "context-parallel-size",
                    "attention-dropout", "hidden-dropout", "attention-softmax-in-fp32",
                    "expert-tensor-parallel-size", "calculate-per-token-loss",
                    "use-rotary-position-embeddings",
                )
            ),
        ),
        REFUSED_GROUPS["megatron"],
    ),
    **dict.fromkeys(
        (
            "tpu", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "vm", "env",
            "main-training-function", "downcast-bf16",
        ),
        REFUSED_GROUPS["tpu"],
    ),
    **dict.fromkeys(("aws-access-key-id", "aws-secret-access-key"), REFUSED_GROUPS["sagemaker"]),
    "mpirun-hostfile": REFUSED_GROUPS["mpi"],
    **dict.fromkeys(
        (
            "machine-rank", "main-process-ip", "main-process-port", "same-network", "rdzv-backend",
            "rdzv-conf",
        ),
        MEETING,
    ),
    "gradient-accumulation-steps": _TO_ACCELERATOR,
    "no-python": "give a Python script",
    "help": "it starts nothing",
}  # fmt: skip
"""Flag -> why it is not supported, and what to do."""
_WITHOUT_VALUE = frozenset(
    {
        "use-deepspeed", "use-megatron-lm", "tpu", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo",
        "downcast-bf16", "same-network", "no-python", "help",
    }
)  # fmt: skip
"""Of the refused ones."""
_FLAGS: dict[str, Flag] = {
    **{
        name.replace("_", "-"): Flag("setting", takes_value=setting.kind != "switch")
        for name, setting in SETTINGS.items()
    },
    **{
        name: Flag("refused", takes_value=name not in _WITHOUT_VALUE, instead=why)
        for name, why in _REFUSED.items()
    },
    "num-processes": Flag("num_processes"),
    "num-machines": Flag("num_machines"),
    "max-restarts": Flag("restarts"),
    "config-file": Flag("file"),
    "role": Flag("role"),
    "module": Flag("module", takes_value=False),
    "quiet": Flag("same", takes_value=False),
    "gpu-ids": Flag("same", values=("all",), instead=_GPUS),
    "tee": TEE,
    "log-dir": Flag("stock"),
    "monitor-interval": MONITOR_INTERVAL,
}
ACCELERATE = FlagTable(
    command=("accelerate", "launch"),
    flags=_FLAGS,
    short={"m": "module", "q": "quiet", "t": "tee", "h": "help"},
    abbreviates=False,
)
_ONE_OF = ("cpu", "multi_gpu", "use_fsdp")


def read_accelerate(words: Sequence[str]) -> tuple[LaunchFlags, list[str]]:
    """Read what follows `accelerate launch`; returns the flags, and the script with its arguments.

    Raises FlagError, which names a flag that is not supported.
    """
    found, rest = ACCELERATE.read(words)
    last = ACCELERATE.last(found)
    settings = {
        flag.name.replace("-", "_"): _checked(flag)
        for flag in found
        if _FLAGS[flag.name].kind == "setting"
    }
    counts = {
        key: read_number(last[key], 1, most) for key, most in _MOST_COUNTS.items() if key in last
    }
    _require_one(settings, counts)
    launch = None
    if "file" in last:
        path = _path(last["file"])
        launch = AccelerateLaunch(config_file=path, settings=settings, counts=counts)
    flags = replace(
        ACCELERATE.common(found),
        processes=counts.get("num_processes"),
        machines=counts.get("num_machines"),
        accelerate=launch,
        variables={} if launch else _variables(settings),
    )
    return flags, [*(["-m"] if "module" in last else []), *rest]


def _path(flag: FoundFlag) -> str:
    if 0 < len(flag.value) <= TEXT_LIMIT and flag.value.isprintable():
        return flag.value
    raise FlagError(f"{shorten(flag.written)}: give a path of at most {TEXT_LIMIT} characters")


def _checked(flag: FoundFlag) -> Value:
    if not _FLAGS[flag.name].takes_value:
        return True
    try:
        return checked(flag.name.replace("-", "_"), flag.value)
    except ValueError as error:
        raise FlagError(f"{shorten(flag.written)}: {error}") from None


def _variables(settings: dict[str, Value]) -> dict[str, str]:
    try:
        return variables(settings)
    except ValueError as error:
        raise FlagError(f"--{error}") from None


def _require_one(settings: dict[str, Value], counts: dict[str, int]) -> None:
    chosen = [f"--{name}" for name in _ONE_OF if name in settings]
    if len(chosen) > 1:
        raise FlagError(f"{', '.join(chosen)}: they exclude each other: keep one of them")
    if "multi_gpu" in settings and counts.get("num_processes") == 1:
        raise FlagError(
            "--multi_gpu: it needs two processes or more, and --num_processes is 1: leave one of "
            "them out"
        )
