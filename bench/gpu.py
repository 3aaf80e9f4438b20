"""Training on one GPU: regroup beside a bare compiled loop, Lightning and Hugging Face's Trainer.

    make bench NAME=gpu [ARGS="--case gpt-124m@1024"]

All subjects train our model in bf16 (autocast, fp32 weights) on random tokens, each in processes of
its own. regroup runs as a whole job with coordinator and agent. A subject that is missing or fails
has `trained` 0. The cases:

- three models, each at a length of context: `tokens_per_second` and `model_flops_utilization`. The
  second is the share of the device's peak that the model's own operations need, for devices whose
  peak is known.
- `checkpoint`: the training seconds that a save costs.
- `restart`: of regroup, the seconds from the last step of a killed rank to the next one. Of others,
  from the start of a new process to its first step from a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import click

from bench import gpu_regroup
from bench.gpu_job import Job, flops_per_token, peak_flops
from bench.harness import Plan, Values, command

SUBJECTS = ("regroup", "bare", "lightning", "hf")
UNITS = {
    "trained": "",
    "tokens_per_second": "1/s",
    "model_flops_utilization": "",
    "lost_seconds": "s",
    "restart_seconds": "s",
}
TRAININGS = {
    "gpt-124m@1024": Job(
        "gpt", "124m", 50304, 1024, micro_batch=16, accumulation=4, steps=60, warm=20, compile=True
    ),
    "gpt-1.3b@2048": Job(
        "gpt", "1.3b", 50304, 2048, micro_batch=4, accumulation=4, steps=30, warm=10, compile=True
    ),
    "llama-1b@4096": Job(
        "llama", "1b", 128256, 4096, micro_batch=1, accumulation=8, steps=30, warm=10, compile=True
    ),
    "gpt-tiny@64": Job(
        "gpt", "tiny", 256, 64, micro_batch=4, accumulation=2, steps=300, warm=50, compile=False
    ),
}
"""Vocabularies are rounded up to a multiple of 64, which suits the kernels."""
QUICK = "gpt-tiny@64"
SAVE_EVERY = 5
PART_SECONDS = 270
"""For one subject: a part of four fits into nine minutes only if most take less; one that hangs is
given up.
"""


def plan(quick: bool) -> Plan:
    """All cases; a quick run trains a tiny model, on a CPU too."""
    if quick:
        return Plan("gpu", (QUICK, f"{QUICK} checkpoint", f"{QUICK} restart"), SUBJECTS, UNITS, 1)
    if device_name() == "cpu":
        raise click.UsageError(
            "there is no GPU here: use --quick, which trains a tiny model on the CPU"
        )
    large = [name for name in TRAININGS if name != QUICK]
    return Plan(
        "gpu", (*large, f"{large[0]} checkpoint", f"{large[0]} restart"), SUBJECTS, UNITS, 1
    )


def measure(case: str, subject: str) -> Values:
    """One case of one subject."""
    name, _, kind = case.partition(" ")
    job, figure = (
        TRAININGS[name],
        {"": throughput, "checkpoint": lost_seconds, "restart": restart_seconds}[kind],
    )
    folder = Path(tempfile.mkdtemp(prefix="regroup-bench-"))
    try:
        return {"trained": 1.0, **figure(job, subject, folder)}
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"{case} {subject}: {error}", file=sys.stderr)
        return {"trained": 0.0}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def throughput(job: Job, subject: str, folder: Path) -> Values:
    """Tokens per second and what share of the device's peak they need."""
    tokens = job.tokens_per_step / seconds_per_step(job, subject, folder)
    peak = peak_flops(device_name())
    needed = flops_per_token(parameters(job), job.config.size, job.length)
    return {
        "tokens_per_second": tokens,
        "model_flops_utilization": tokens * needed / peak if peak else None,
    }


def lost_seconds(job: Job, subject: str, folder: Path) -> Values:
    """Extra training time per save, in seconds."""
    without = seconds_per_step(job, subject, folder / "without")
    saving = seconds_per_step(replace(job, save_every=SAVE_EVERY), subject, folder / "with")
    return {"lost_seconds": (saving - without) * SAVE_EVERY}


def restart_seconds(job: Job, subject: str, folder: Path) -> Values:
    """Seconds until training continues after a restart."""
    saving = replace(job, save_every=SAVE_EVERY)
    if subject == "regroup":
        return {"restart_seconds": gpu_regroup.restart_seconds(saving, folder)}
    peer(saving, subject, folder)
    start = time.time()
    return {
        "restart_seconds": peer(replace(job, resume=True), subject, folder)["first_step"] - start
    }


def seconds_per_step(job: Job, subject: str, folder: Path) -> float:
    """Mean seconds of a step after the warm-up."""
    if subject == "regroup":
        return gpu_regroup.seconds_per_step(job, folder)
    return peer(job, subject, folder)["seconds_per_step"]


def peer(job: Job, subject: str, folder: Path) -> dict[str, float]:
    """Train in a process of its own. Raises SubprocessError with the end of its stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    line = [
        sys.executable,
        "-m",
        "bench.gpu_peers",
        subject,
        json.dumps(job.as_dict()),
        str(folder),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PART_SECONDS, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@cache
def device_name() -> str:
    """Name of the first GPU, or `cpu`; queried in another process, since this one forks."""
    question = (
        "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"
    )
    return subprocess.run(
        [sys.executable, "-c", question], capture_output=True, text=True, check=True
    ).stdout.strip()


@cache
def parameters(job: Job) -> int:
    """Number of parameters in matrix products: all except an embedding table."""
    from regroup_trainer import models

    model = models.build(job.config, job.classes)
    looked_up = 0 if job.config.size.tied_embeddings else job.classes * job.config.size.width
    return sum(parameter.numel() for parameter in model.parameters()) - looked_up


main = command(plan, measure)

if __name__ == "__main__":
    main()
