"""A rank of the checkpoint benchmark: trains blocks of steps without and with a save, in turns."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.layout import DataIdentity, Layout, RunIdentity
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import CheckpointFailed, CheckpointSaved, RankReport
from regroup_trainer.step.state import Position, TrainState

LAYERS = 8
BYTES_PER_PARAMETER = 12
"""fp32 parameter and AdamW's two moments."""
BATCH = 64
MIB = 1 << 20
_GENERATION = GenerationNumber(1, 1)


@dataclass
class Costs:
    """The costs of the saves so far, in seconds."""

    blocking: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the duration of the block to the blocking times."""
        start = time.perf_counter()
        yield
        self.blocking.append(time.perf_counter() - start)


class SavingSubject(Protocol):
    """A way to save."""

    def after_step(self, step: int, save: bool) -> None:
        """Called after each step; `save` says whether to save it."""

    def finish(self) -> None:
        """Wait for the saves in the background."""

    def tidy(self) -> None:
        """Delete old checkpoints; this time is not measured."""


@dataclass
class RegroupSaves:
    """Regroup's checkpointer, as the built-in trainer uses it."""

    state: TrainState
    folder: Path
    group: GenerationGroup
    costs: Costs

    def __post_init__(self) -> None:
        layout = Layout(self.folder)
        data = DataIdentity(
            fingerprint="", samples=1, seed=0, global_batch_size=1, sequence_length=1
        )
        if self.group.is_rank0:
            for path in (layout.checkpoints, layout.lineage):
                path.mkdir()
            begun = LineageRecord(
                generation=_GENERATION,
                parent=None,
                resumed_from_step=0,
                resume=ResumePolicy(),
                data=data,
            )
            lineage.begin(layout, begun)
        dist.barrier()
        identity = RunIdentity({}, "ddp", data)
        saver = Saver(layout, _GENERATION, self.group, identity, sync_history=lambda: None)
        self.checkpointer = Checkpointer(
            saver, self.state, CheckpointPolicy(keep_last=1), self, None
        )

    def send(self, report: RankReport) -> None:
        """Record the times of a finished save."""
        assert not isinstance(report, CheckpointFailed), report
        if isinstance(report, CheckpointSaved):
            self.costs.blocking.append(report.blocking_seconds)
            self.costs.durable.append(report.seconds)

    def after_step(self, step: int, save: bool) -> None:
        self.state.position = Position(step, step, step)
        self.checkpointer.after_step()
        if save:
            self.checkpointer.begin()

    def finish(self) -> None:
        while self.checkpointer.saving:
            time.sleep(0.005)
            self.checkpointer.after_step()

    def tidy(self) -> None:
        """Nothing to do: the checkpointer deletes old checkpoints itself."""


@dataclass
class Blocking:
    """A way to save that returns when the data is written."""

    write: Callable[[Path], object]
    folder: Path
    costs: Costs

    def after_step(self, step: int, save: bool) -> None:
        if save:
            path = self.folder / f"step-{step}"
            path.mkdir(exist_ok=True)
            with self.costs.timed():
                self.write(path)

    def finish(self) -> None:
        """Nothing to do: no save runs in the background."""

    def tidy(self) -> None:
        discard(self.folder)

    def measure_durability(self) -> None:
        """Save once more and flush, since not every subject flushes by itself."""
        dist.barrier()
        start = time.perf_counter()
        self.after_step(0, save=True)
        flush(self.folder / "step-0")
        self.costs.durable.append(time.perf_counter() - start)
        self.tidy()


@dataclass
class DcpAsync:
    """torch's asynchronous save, on a process group of its own as it must be."""

    tensors: Callable[[], dict[str, Any]]
    folder: Path
    costs: Costs
    pending: Any = None
    start: float = 0.0

    def __post_init__(self) -> None:
        self.group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))

    def after_step(self, step: int, save: bool) -> None:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        if not save:
            if self.pending is not None and self.pending.done():
                self.finish()
            return
        with self.costs.timed():
            self.finish()
            self.start = time.perf_counter()
            path = self.folder / f"step-{step}"
            self.pending = async_save(self.tensors(), checkpoint_id=path, process_group=self.group)

    def finish(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.costs.durable.append(time.perf_counter() - self.start)
            self.pending = None

    def tidy(self) -> None:
        discard(self.folder)


def flush(path: Path) -> None:
    """Flush this rank's part to the device: all files, since a file does not name its rank."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Delete old checkpoints, as Regroup does."""
    dist.barrier()
    if dist.get_rank() == 0:
        for path in folder.glob("step-*"):
            shutil.rmtree(path)
    dist.barrier()


def raw_write(content: bytes, path: Path) -> None:
    """Write and flush the bytes without any format."""
    with (path / f"raw-{dist.get_rank()}").open("wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def make(
    name: str, state: TrainState, folder: Path, group: GenerationGroup, size: int
) -> tuple[SavingSubject, Costs]:
    """The subject of this name."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    costs = Costs()

    def tensors() -> dict[str, Any]:
        model, optimizer = get_state_dict(state.model, state.optimizer)
        return {"model": model, "optimizer": optimizer}

    content = os.urandom(size // group.size) if name == "raw-write" else b""
    writes: dict[str, Callable[[Path], object]] = {
        "dcp.save": lambda path: save(tensors(), checkpoint_id=path),
        "torch.save": lambda path: torch.save(tensors(), path / f"rank-{group.rank}.pt"),
        "raw-write": lambda path: raw_write(content, path),
    }
    if name == "regroup":
        return RegroupSaves(state, folder, group, costs), costs
    tensors()  # imports what the first save would have to
    if name == "dcp.async_save":
        return DcpAsync(tensors, folder, costs), costs
    return Blocking(writes[name], folder, costs), costs


def build(size: int) -> tuple[TrainState, Tensor]:
    """A model whose state is `size` bytes, sharded over the ranks, and a batch [B, C] of each."""
    width = int((size / BYTES_PER_PARAMETER / LAYERS) ** 0.5)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)])
    if dist.get_world_size() > 1:
        for module in (*model, model):
            fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return TrainState(model, optimizer, Position()), torch.randn(BATCH, width)


def main() -> None:
    """Arguments: subject, bytes, folder, pairs of blocks, seconds of a block, ranks, rank."""
    name, size, folder, pairs, seconds, ranks, rank = sys.argv[1:]
    torch.set_num_threads(1)
    group = GenerationGroup(int(rank), int(ranks), int(rank), torch.device("cpu"))
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=group.rank, world_size=group.size
    )
    state, batch = build(int(size))
    subject, costs = make(name, state, Path(folder), group, int(size))
    lost = run(subject, state, batch, int(pairs), float(seconds))
    if group.is_rank0:  # it receives the reports of all saves
        values = {
            "lost_seconds": lost,
            "blocking_seconds": max(costs.blocking),
            "durable_seconds": statistics.median(costs.durable),
        }
        (Path(folder) / "values.json").write_text(json.dumps(values))
    dist.barrier()
    dist.destroy_process_group()


def run(
    subject: SavingSubject, state: TrainState, batch: Tensor, pairs: int, seconds: float
) -> float:
    """Blocks of steps in pairs; one of each begins with a save, and ends when that has ended.
    Returns seconds lost.
    """
    step = 0

    def block(steps: int, save: bool) -> float:
        nonlocal step
        subject.tidy()
        dist.barrier()
        start = time.perf_counter()
        for number in range(steps):
            step += 1
            train_step(state, batch)
            subject.after_step(step, save and number == 1)
        subject.finish()
        dist.barrier()
        return time.perf_counter() - start

    block(2, save=False)
    length = steps_for(seconds, block(2, save=False) / 2)
    lost = []
    for number in range(pairs):
        took = {
            save: block(length, save)
            for save in ((False, True) if number % 2 == 0 else (True, False))
        }
        lost.append(took[True] - took[False])
    if isinstance(subject, Blocking):
        subject.measure_durability()
    return statistics.median(lost)


def steps_for(seconds: float, step_seconds: float) -> int:
    """Steps of a block of so many seconds, the same on all ranks."""
    steps = torch.tensor(max(5.0, min(40.0, seconds / step_seconds)))
    dist.all_reduce(steps, dist.ReduceOp.MIN)
    return int(steps)


def train_step(state: TrainState, batch: Tensor) -> None:
    """Forward, backward and update."""
    state.model(batch).square().mean().backward()
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
