"""How each example is run on this machine in the tests: the commands of its README, made shorter
where they can be.

A row belongs to a folder of `examples/` and runs in it. Words in `prints` must appear in what it
prints, in this order. `{tmp}` in a command is a fresh folder; `python`, `regroup` and `torchrun`
are those of the environment under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LocalCommand:
    """One command of an example."""

    example: str
    command: str
    prints: tuple[str, ...]
    mark: Literal["quick", "slow", "long"] = "quick"
    """Slow: it takes more than ten seconds. Long: it is in `make test-long`."""


LOCAL_COMMANDS: tuple[LocalCommand, ...] = (
    LocalCommand(
        "1-first-ddp-script",
        "torchrun --standalone --nproc-per-node=2 train.py",
        ("epoch 0: loss 3.06", "trained 5 epochs on 2 ranks"),
        mark="long",
    ),
    LocalCommand(
        "1-first-ddp-script",
        "regroup run torchrun.yaml --directory {tmp} --plain",
        (
            "epoch 0: loss 3.06",
            "trained 5 epochs on 2 ranks",
            "completed: workers that ended well: 2",
        ),
        mark="slow",
    ),
    LocalCommand(
        "1-first-ddp-script",
        "regroup run regroup.yaml --directory {tmp} --plain",
        ("rank 0: epoch 0: loss 3.06", "completed: 4 steps, final loss 0.29"),
        mark="long",
    ),
    LocalCommand(
        "3-language-models",
        "python compare.py --ranks 2 --steps 1 --rounds 1",
        ("MB of state per rank", "DataParallel", "DDP", "DDP + ZeRO", "FSDP"),
        mark="long",
    ),
    LocalCommand(
        "3-language-models",
        "env REGROUP_DIRECTORY={tmp} torchrun --standalone --nproc-per-node=2 train.py --zero "
        "--epochs 1",
        ("epoch 0 is next", "epoch 0 on 2 ranks", "state per rank: 24"),
        mark="long",
    ),
    LocalCommand(
        "2-ddp-in-depth",
        "python gradients.py",
        ("gradient at w = 0", "a mean of means by 6.6e-01", "truth [2.0, -1.0, 0.5]"),
    ),
    LocalCommand(
        "2-ddp-in-depth",
        "python collectives.py --latency-ms 1",
        ("ranks  rounds", "    8       3"),
        mark="slow",
    ),
    LocalCommand(
        "2-ddp-in-depth",
        "python overlap.py",
        (
            "with no_sync            1 all-reduces",
            "buckets of 25 MB",
            "one bucket             1 all-reduces",
        ),
        mark="long",
    ),
    LocalCommand(
        "2-ddp-in-depth",
        "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node=2 "
        "--max-restarts=3 "
        "failover.py --folder {tmp} --kill rank=1@step=57",
        ("rank 1 is killed in step 57", "restart 1: goes on from step 50", "done: step 100"),
        mark="long",
    ),
    LocalCommand(
        "2-ddp-in-depth",
        "python ranks.py",
        ("RANK 0 of 2", "machine a is lost, machine c takes its place", "machine b: RANK 0 of 2"),
        mark="long",
    ),
    LocalCommand(
        "4-replica-and-shard-groups",
        "torchrun --standalone --nproc-per-node=4 groups.py --shard-size 2",
        (
            "4 ranks as [2, 2]: [[0, 1], [2, 3]]",
            "rank 3: shard group [2, 3], replica group [1, 3]",
            "one process",
        ),
        mark="long",
    ),
    LocalCommand(
        "5-hundred-billion",
        "python layouts.py --milliseconds 1",
        (
            "by hand + DDP",
            "133.29547",
            "pipeline + DDP",
            "133.29547",
            "tensor + DDP",
            "sharded (HSDP)",
            "133.29547",
        ),
        mark="long",
    ),
    LocalCommand(
        "5-hundred-billion",
        "regroup plan --params 100e9 --nodes 8 --gpus-per-node 8 --gpu a100-80",
        ("recommended", "apiVersion: regroup.dev/v1alpha1", "replicas: 8"),
    ),
    LocalCommand(
        "6-session",
        "regroup run job.yaml --plain --directory {tmp} --kill worker=1@step=120 --kill "
        "rank=0@step=300",
        ("killed worker 1", "killed rank 0", "completed: 640 steps, final loss 0.04"),
        mark="long",
    ),
    LocalCommand(
        "6-session",
        "torchrun --standalone --nproc-per-node=2 before.py",
        ("epoch 20: loss",),
        mark="long",
    ),
    LocalCommand(
        "6-session",
        "env REGROUP_DIRECTORY={tmp} python after.py",
        ("step 100", "step 600"),
        mark="long",
    ),
    LocalCommand(
        "6-session",
        "env REGROUP_DIRECTORY={tmp} torchrun --standalone --nproc-per-node=2 after.py",
        ("step 100", "step 600"),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "env REGROUP_DIRECTORY={tmp} torchrun --standalone --nproc-per-node=2 train_lightning.py",
        ("step 10", "step 400"),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "env REGROUP_DIRECTORY={tmp} torchrun --standalone --nproc-per-node=2 "
        "train_transformers.py",
        ("'epoch': '4'",),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "env REGROUP_DIRECTORY={tmp} torchrun --standalone --nproc-per-node=2 train_accelerate.py",
        ("step 10 of this process: loss", "step 400 of this process: loss"),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "regroup run lightning.yaml --directory {tmp} --plain",
        ("step 10: loss", "step 400: loss", "completed"),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "regroup run transformers.yaml --directory {tmp} --plain",
        ("'epoch': '4'", "completed"),
        mark="long",
    ),
    LocalCommand(
        "7-other-trainers",
        "regroup run accelerate.yaml --directory {tmp} --plain",
        ("step 10 of this process: loss", "step 400 of this process: loss", "completed"),
        mark="long",
    ),
)
