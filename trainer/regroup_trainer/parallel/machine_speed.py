"""Measures how fast this machine computes and communicates, for `regroup plan --calibrate`.

`python -m regroup_trainer.parallel.machine_speed --model JSON --sequence-length N --ranks N` prints
a `Calibration` as JSON, and `--device-only` just the name of the device. Each rank has a device; on
CPUs they share the cores, as in a job. All ranks compute at the same time, and the slowest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import build
from regroup_trainer.models.decoder import Decoder
from regroup_trainer.models.rotary import rotary_angles
from regroup_trainer.protocol.calibration import Calibration, ComputeRates, LinkRates, Precision
from regroup_trainer.protocol.config import ModelConfig
from regroup_trainer.system.memory_limit import available_bytes

_SECONDS = 0.5
"""How long each measurement lasts, at least."""
_RUNS = 3
_LARGE, _SMALL = 16 * 2**20, 1024
"""Bytes of a collective whose bandwidth, or latency, is measured."""
_FEW = 64
"""Rows of a first, short measurement, which shows how many rows the next one takes."""
_BYTES_OF_PARAMETER = 16
"""Of a block: in fp32 itself, its gradient and a copy for products; in bf16 two more by autocast.
"""
_BYTES_OF_PROCESS = 500 * 10**6
"""Of a rank that has imported torch, in the memory that ranks on CPUs share."""
_DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


def measure(model: ModelConfig, sequence_length: int, rank: int, ranks: int) -> Calibration:
    """Measure on this rank. All ranks of the default process group call it, and all get the result.

    Raises ConfigurationError when blocks of the model do not fit the memory of all ranks.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    decoder = _one_block(model)
    sequence_length = min(sequence_length, _most_rows(decoder, device, ranks))
    dist.barrier()  # all have looked at the memory that is free
    _allocate(decoder, device)
    rates = {
        precision: ComputeRates(
            products=_slowest(_products(decoder, dtype, sequence_length, device), device),
            block=_slowest(_block(decoder, dtype, sequence_length, device), device),
        )
        for precision, dtype in _DTYPES.items()
    }
    return Calibration(
        device=_device_name(device),
        ranks=ranks,
        rates=rates,
        links=_links(device, ranks) if ranks > 1 else None,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _one_block(model: ModelConfig) -> Decoder:
    """The model with a single block, on the meta device."""
    size = model.size.model_copy(update={"layers": 1})
    decoder = build(model.model_copy(update={"preset": None, "dimensions": size}), classes=1)
    if not isinstance(decoder, Decoder):
        raise ConfigurationError(f"model.name: {model.name!r} is no transformer: give gpt or llama")
    return decoder


def _allocate(decoder: Decoder, device: torch.device) -> None:
    """Give the parameters random values."""
    decoder.to_empty(device=device)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.02)


def _most_rows(decoder: Decoder, device: torch.device, ranks: int) -> int:
    """Tokens whose inputs, results and gradients of a block's products take a quarter of the free
    memory.

    Raises ConfigurationError when the blocks of all ranks take more than half of it.
    """
    free, sharing = _free_memory(device), ranks if device.type == "cpu" else 1
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    process = _BYTES_OF_PROCESS if device.type == "cpu" else 0
    needed = sharing * (_BYTES_OF_PARAMETER * parameters + process)
    if needed > free / 2:
        raise ConfigurationError(
            f"one block with its gradients and copies takes {needed / 1e9:.1f} GB on {sharing} "
            f"local ranks, more than half of the {free / 1e9:.1f} GB that are free: measure a "
            "smaller model, or fewer ranks"
        )
    sides = sum(sum(weight.shape) for weight in decoder.blocks.parameters() if weight.dim() == 2)
    return max(_FEW, free // 4 // sharing // (2 * 4 * sides))


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def _products(decoder: Decoder, dtype: torch.dtype, length: int, device: torch.device) -> float:
    """Operations per second in products with the matrices of a block."""
    shapes = [weight.shape for weight in decoder.blocks.parameters() if weight.dim() == 2]
    matrices = [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
    per_row = sum(2 * shape.numel() for shape in shapes)

    def inputs(rows: int) -> list[torch.Tensor]:
        return [torch.randn(rows, shape[1], dtype=dtype, device=device) for shape in shapes]

    def multiply(rows: list[torch.Tensor]) -> None:
        for matrix, left in zip(matrices, rows, strict=True):
            torch.nn.functional.linear(left, matrix)

    few = inputs(_FEW)
    rate = per_row * _FEW / _seconds(lambda: multiply(few), device, least=0.0)
    rows = _rows(rate, per_row, length)
    many = inputs(rows)
    return per_row * rows / _seconds(lambda: multiply(many), device)


def _rows(rate: float, operations_per_row: float, length: int) -> int:
    """A sequence, or as much of it as takes about a third of a measurement."""
    return max(_FEW, min(length, int(rate * _SECONDS / _RUNS / operations_per_row)))


def _block(decoder: Decoder, dtype: torch.dtype, length: int, device: torch.device) -> float:
    """Operations per second of a block's forward and backward pass: 6 N + 12 C T per token."""
    block, size = decoder.blocks[0], decoder.size
    parameters = sum(weight.numel() for weight in block.parameters())

    def passes(rows: int) -> Callable[[], None]:
        x = torch.randn(1, rows, size.width, device=device, requires_grad=True)
        cosine, sine = rotary_angles(rows, size, device)

        def run() -> None:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32):
                result = block(x, cosine, sine)
            result.sum().backward()
            block.zero_grad(set_to_none=True)

        return run

    def operations(rows: int) -> float:
        return rows * (6.0 * parameters + 12.0 * size.width * rows)

    rate = operations(_FEW) / _seconds(passes(_FEW), device, least=0.0)
    rows = _rows(rate, operations(length) / length, length)
    return operations(rows) / _seconds(passes(rows), device)


def _links(device: torch.device, ranks: int) -> LinkRates:
    large = torch.zeros(_LARGE // 4, device=device)
    parts = torch.zeros(_LARGE // 4 * ranks, device=device)
    small = torch.zeros(_SMALL // 4, device=device)
    passing = _LARGE * (ranks - 1)
    reduced = _together(lambda: dist.all_reduce(large), device)
    gathered = _together(lambda: dist.all_gather_into_tensor(parts, large), device)
    hops = _together(lambda: dist.all_reduce(small), device)
    return LinkRates(
        all_reduce=2 * passing / ranks / reduced,
        all_gather=passing / gathered,
        hop_seconds=hops / (2 * (ranks - 1)),
    )


def _seconds(work: Callable[[], object], device: torch.device, least: float = _SECONDS) -> float:
    """Median seconds of a run, after one that is not counted."""
    _timed(work, device)
    begin, times = time.perf_counter(), [_timed(work, device)]
    while time.perf_counter() - begin < least or len(times) < _RUNS:
        times.append(_timed(work, device))
    return statistics.median(times)


def _together(work: Callable[[], object], device: torch.device) -> float:
    """The same of a collective: all ranks run it equally often, and the slowest rank counts."""
    _timed(work, device)
    count = torch.tensor(max(_RUNS, min(100, int(_SECONDS / _timed(work, device)))), device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    median = statistics.median(_timed(work, device) for _ in range(int(count)))
    return 1 / _slowest(1 / median, device)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _slowest(rate: float, device: torch.device) -> float:
    """The rate of the slowest rank."""
    least = torch.tensor(rate, dtype=torch.float64, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float(least)


def _run_rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    """One rank of the measurement; rank 0 leaves the result in `folder`. Ends the process."""
    on_gpu, ranks = torch.cuda.is_available(), options.ranks
    if not on_gpu:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
    )
    found = measure(ModelConfig.model_validate(options.model), options.sequence_length, rank, ranks)
    if rank == 0:
        Path(folder, "result").write_text(found.model_dump_json())
    dist.destroy_process_group()
    # At the end of Python, a thread of gloo that frees a tensor aborts the process.
    os._exit(0)


def main() -> int:
    """Measure with local ranks and print the result. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="regroup_trainer.parallel.machine_speed")
    parser.add_argument("--device-only", action="store_true", help="Measure nothing.")
    parser.add_argument("--model", type=json.loads, default={})
    parser.add_argument("--sequence-length", type=int, default=_FEW)
    parser.add_argument("--ranks", type=int, default=1, help="On GPUs at most one for each.")
    options = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if options.device_only:
        print(_device_name(device))
        return 0
    if device.type == "cuda":
        options.ranks = min(options.ranks, torch.cuda.device_count())
    try:
        # Before there are ranks, whose processes alone may be too many.
        _most_rows(_one_block(ModelConfig.model_validate(options.model)), device, options.ranks)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    return _measure_by_ranks(options)


def _measure_by_ranks(options: argparse.Namespace) -> int:
    """Start the ranks and print what they found. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="regroup-calibration-") as folder:
        try:
            ranks = (options, folder), options.ranks
            spawn(_run_rank, *ranks)  # type: ignore[no-untyped-call]
        except ProcessRaisedException as error:
            print(str(error).strip().splitlines()[-1], file=sys.stderr)
            return 1
        print(Path(folder, "result").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
