"""What ranks do in tests besides training: fail, stop half-way, write their state."""

from __future__ import annotations

import ctypes
import errno
import importlib
import importlib.metadata
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.generation import Assignment, Decision, GenerationNumber
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Progress,
    RankReport,
    SnapshotTaken,
)
from tests.support.other_user import become_other_user
from tests.support.ranks import RecordingChannel, train
from tests.support.waiting import wait_until

Options = dict[str, Any]
_CLONE_NEWNET = 0x40000000


def _after_step(channel: RecordingChannel, step: int, act: Callable[[], None]) -> None:
    """Act once `step` has been reported."""
    send = channel.send

    def send_and_act(report: RankReport) -> None:
        send(report)
        if isinstance(report, Progress) and report.step == step:
            act()

    channel.send = send_and_act  # type: ignore[method-assign]


def die_after_step(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank is killed after a step."""
    if assignment.rank == options["rank"]:
        _after_step(channel, options["step"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    return train(assignment, options, channel)


def die_with_snapshot(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank is killed after a step, once every rank has reported its part of a snapshot.

    No step is made before there is memory for the snapshot, which is skipped otherwise.
    """
    from regroup_trainer.snapshots.snapshot_writer import MemorySnapshots

    whole, send, after_step = threading.Event(), channel.send, MemorySnapshots.after_step

    def prepare(snapshots: MemorySnapshots) -> None:
        after_step(snapshots)
        wait_until("the memory", lambda: snapshots.ready or snapshots._incomplete, seconds=100)

    MemorySnapshots.after_step = prepare  # type: ignore[method-assign,assignment]

    def send_and_act(report: RankReport) -> None:
        send(report)
        if isinstance(report, SnapshotTaken):
            whole.set()
        if isinstance(report, Progress) and report.step == options["step"]:
            assert whole.wait(100)
            if assignment.rank == options["rank"]:
                os.kill(os.getpid(), signal.SIGKILL)

    channel.send = send_and_act  # type: ignore[method-assign]
    return train(assignment, options, channel)


def die_with_a_full_volume(
    assignment: Assignment, options: Options, channel: RecordingChannel
) -> int:
    """As `die_with_snapshot`; the volume has taken no line of the history by then."""
    from regroup_trainer.checkpoint.history_writer import History

    def refuse(history: History) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    History._open_file = refuse  # type: ignore[method-assign, assignment]
    return die_with_snapshot(assignment, options, channel)


def raise_after_step(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank has a bug."""

    def fail() -> None:
        raise ValueError("a bug of the user's own")

    if assignment.rank == options["rank"]:
        _after_step(channel, options["step"], fail)
    return train(assignment, options, channel)


def poison_step(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """The loss of one rank's step is NaN."""
    import torch

    from regroup_trainer.step import forward

    plain = forward.loss_sum  # type: ignore[attr-defined]

    def poisoned(
        logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        bad = assignment.rank == options["rank"] and channel.step + 1 == options["step"]
        return plain(logits, targets, weights) * (float("nan") if bad else 1.0)

    forward.loss_sum = poisoned  # type: ignore[attr-defined]
    return train(assignment, options, channel)


def compute_slowly(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank needs longer than the others for each block of the model."""
    from regroup_trainer.models.gpt import GptBlock

    if assignment.rank == options["rank"]:
        plain = GptBlock.forward

        def slow(self: GptBlock, *inputs: Any) -> Any:
            time.sleep(options["seconds"])
            return plain(self, *inputs)

        GptBlock.forward = slow  # type: ignore[assignment,method-assign]
    return train(assignment, options, channel)


def die_while_saving(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank is killed when the save of a step calls the function `where` (module.function)."""
    module_name, name = options["where"].split(".")
    module = importlib.import_module(f"regroup_trainer.checkpoint.{module_name}")
    plain = getattr(module, name)

    def die_or_go_on(*arguments: Any) -> Any:
        concerned = any(f"step-{options['step']}.tmp" in str(argument) for argument in arguments)
        if assignment.rank == options["rank"] and concerned:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    setattr(module, name, die_or_go_on)
    return train(assignment, options, channel)


def limit_file_size(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """One rank cannot write files above a size while it saves a step, so many `times` if given."""
    from regroup_trainer.checkpoint import shard_file

    plain, unlimited = shard_file.write, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    writes, times = count(), options.get("times", math.inf)

    def write_limited(path: Path, *arguments: Any) -> Any:
        if f"step-{options['step']}.tmp" in str(path) and next(writes) < times:
            resource.setrlimit(resource.RLIMIT_FSIZE, (options["bytes"], resource.RLIM_INFINITY))
        try:
            return plain(path, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    if assignment.rank == options["rank"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        shard_file.write = write_limited  # type: ignore[assignment]
    return train(assignment, options, channel)


def write_slowly(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """The volume delays the save of a step until another step was trained."""
    from regroup_trainer.checkpoint import shard_file
    from regroup_trainer.rank.running_generation import RunningGeneration

    plain, reached = shard_file.write, threading.Event()
    record = RunningGeneration.record

    def write_late(path: Path, *arguments: Any) -> Any:
        if f"step-{options['step']}.tmp" in str(path):
            assert reached.wait(60)
        return plain(path, *arguments)

    def record_and_note(generation: RunningGeneration, result: Any, rate: float) -> None:
        record(generation, result, rate)
        if result.position.step == options["until"]:
            reached.set()

    shard_file.write = write_late  # type: ignore[assignment]
    RunningGeneration.record = record_and_note  # type: ignore[method-assign, assignment]
    return train(assignment, options, channel)


def take_at_the_end(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """The volume takes nothing before the generation ends: no part of a `save`, no line of the
    `history`.
    """
    from regroup_trainer.checkpoint import shard_file
    from regroup_trainer.checkpoint.history_writer import History
    from regroup_trainer.checkpoint.save import Save

    plain, give_up, write, ending = (
        shard_file.write,
        Save.give_up,
        History._write,
        threading.Event(),
    )

    def write_late(*arguments: Any) -> Any:
        assert ending.wait(60)
        return plain(*arguments)

    def note_and_give_up(save: Save, seconds: float) -> None:
        ending.set()
        give_up(save, seconds)

    def write_line_late(history: History) -> None:
        assert history._closing.wait(60)
        write(history)

    if options["what"] == "save":
        shard_file.write = write_late  # type: ignore[assignment]
        Save.give_up = note_and_give_up  # type: ignore[method-assign, assignment]
    else:
        History._write = write_line_late  # type: ignore[method-assign, assignment]
    return train(assignment, options, channel)


def free_the_disk(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """The file that fills the disk is removed once so many saves have failed."""
    send, failures = channel.send, count(1)

    def send_and_free(report: RankReport) -> None:
        send(report)
        if isinstance(report, CheckpointFailed) and next(failures) == options["failures"]:
            Path(options["hog"]).unlink()

    channel.send = send_and_free  # type: ignore[method-assign]
    return train(assignment, options, channel)


def as_other_user(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Train as another user than root."""
    become_other_user()
    return train(assignment, options, channel)


def supersede_after_step(
    assignment: Assignment, options: Options, channel: RecordingChannel
) -> int:
    """A newer generation begins elsewhere while this one goes on."""
    from regroup_trainer.checkpoint import lineage
    from regroup_trainer.checkpoint.layout import Layout
    from regroup_trainer.protocol.generation import GenerationNumber

    layout = Layout(Path(assignment.record.desired.directory))

    def begin() -> None:
        mine = lineage.read(layout)[assignment.record.number]
        lineage.begin(
            layout, mine.model_copy(update={"generation": GenerationNumber(2, 1), "parent": None})
        )

    if assignment.rank == 0:
        _after_step(channel, options["step"], begin)
    return train(assignment, options, channel)


def show_state(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Write the whole (unsharded) state to files, after restoring and at the end."""
    import torch

    from regroup_trainer.rank.loop import Loop
    from tests.support.whole_state import whole_state

    plain = Loop.run

    def show(loop: Loop, name: str) -> None:
        state = whole_state(loop._state)
        if assignment.rank == 0:
            torch.save(state, Path(options["folder"]) / f"{name}.pt")

    def run_and_show(loop: Loop) -> str:
        show(loop, "restored")
        ending = plain(loop)
        show(loop, "final")
        return ending

    Loop.run = run_and_show  # type: ignore[method-assign, assignment]
    return train(assignment, options, channel)


def show_state_behind_guard(
    assignment: Assignment, options: Options, channel: RecordingChannel
) -> int:
    """As `show_state`, with the update held back by the device, as on a GPU."""
    from regroup_trainer.step.stepper import Stepper
    from regroup_trainer.step.updater import StateUpdater

    StateUpdater.guarded = True  # type: ignore[assignment,method-assign]
    Stepper.proposes_early = False  # type: ignore[assignment,method-assign]
    return show_state(assignment, options, channel)


def list_imports(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Print what was imported during training."""
    before = set(sys.modules)
    code = train(assignment, options, channel)
    print("imported:", sorted(set(sys.modules) - before), file=sys.stderr)
    return code


def list_metadata_read(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Print for which groups the metadata of all packages was searched during training."""
    searched = []

    def search(**given: Any) -> Any:
        searched.append(given.get("group"))
        return entry_points(**given)

    entry_points, importlib.metadata.entry_points = importlib.metadata.entry_points, search
    code = train(assignment, options, channel)
    print("metadata:", searched, file=sys.stderr)
    return code


def in_own_network(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Each rank has a network namespace of its own, as pods have; the store is beside rank 0."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    namespace = os.open(f"/run/netns/{options['namespaces'][assignment.rank]}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    host, port = options["store"].rsplit(":", 1)
    store = None
    if assignment.rank == 0:
        store = TCPStore(
            host, int(port), None, True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
    record = assignment.record.model_copy(update={"store": options["store"]})
    code = train(assignment.model_copy(update={"record": record}), options, channel)
    del store
    return code


def let_go_while_a_collective_hangs(
    assignment: Assignment, options: Options, channel: RecordingChannel
) -> int:
    """Rank 0 leaves while it waits for rank 1 in a collective; rank 1 does not come until then."""
    import gc
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.nn.parallel import DistributedDataParallel

    from regroup_trainer.parallel import process_group
    from regroup_trainer.rank.joining import forget_process_group

    process_group.join(assignment)
    host, port = assignment.record.store.rsplit(":", 1)
    store = TCPStore(host, int(port), is_master=False)
    wrapper = [DistributedDataParallel(torch.nn.Linear(2, 2))]
    if assignment.rank == 1:
        store.wait(["left"], timedelta(seconds=60))
        return 0
    began = time.monotonic()
    hanging = dist.all_reduce(torch.ones(2), async_op=True)
    del hanging
    forget_process_group()
    wrapper.clear()
    gc.collect()
    seconds = time.monotonic() - began
    store.set("left", "")
    if seconds > 20:
        print(f"it took {seconds:.0f} s to let go", file=sys.stderr)
        return 1
    return 0


def meet_after_a_failure(
    assignment: Assignment, options: Options, channel: RecordingChannel
) -> int:
    """In the generation before this one, all ranks came and rank 0 alone connected."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    from regroup_trainer.parallel import process_group

    if assignment.rank == 0:
        host, port = assignment.record.store.rsplit(":", 1)
        failed = assignment.record.model_copy(update={"number": GenerationNumber(0, 9)})
        PrefixStore(str(failed.number), TCPStore(host, int(port), is_master=False)).set(
            process_group._ALL_CAME, ""
        )
        usual, process_group._JOIN_TIMEOUT = process_group._JOIN_TIMEOUT, timedelta(seconds=1)
        try:
            process_group.join(assignment.model_copy(update={"record": failed}))
        except Exception as error:
            if not process_group.is_peer_loss(error):
                raise
        process_group.abandon()
        process_group._JOIN_TIMEOUT = usual
    process_group.join(assignment)
    dist.barrier()
    group = dist.group.WORLD
    assert group
    deadline = group._get_backend(torch.device("cpu")).options._timeout
    return int(deadline != process_group._COLLECTIVE_TIMEOUT)


def without_memory(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """The memory limit of the container is nearly reached."""
    from regroup_trainer.snapshots import snapshot_writer

    snapshot_writer.available_bytes = lambda *_: 1000  # type: ignore[attr-defined]
    return train(assignment, options, channel)


def in_environment(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Run with the environment variables `options`, as an agent has them."""
    os.environ.update(options)
    return train(assignment, options, channel)


def _send_in_pieces(options: Options) -> list[int]:
    """Send states in pieces of `piece_bytes`; damage the piece with the number `damaged`, if any.

    Returns a list that is filled with the sizes of the pieces.
    """
    import torch
    import torch.distributed as dist

    from regroup_trainer.recovery import transfer

    plain, sizes = dist.send, list[int]()

    def send(piece: torch.Tensor, dst: int) -> None:
        if len(sizes) == options["damaged"]:
            piece = piece ^ 1
        sizes.append(piece.nbytes)
        plain(piece, dst=dst)

    transfer._PIECE_BYTES = options["piece_bytes"]
    dist.send = send  # type: ignore[assignment]
    return sizes


def send_state(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Rank 0 sends a state to rank 1. Both write what they hold then, and what they know of the
    transfer.
    """
    import torch

    from regroup_trainer.checkpoint.storage import tensors_of
    from regroup_trainer.parallel import process_group
    from regroup_trainer.recovery import transfer
    from regroup_trainer.step.state import Position, TrainState

    sizes = _send_in_pieces(options)
    rank = process_group.join(assignment).rank
    torch.manual_seed(rank)
    model = torch.nn.Linear(7, 5)
    state = TrainState(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.1 / (1 + rank)),
        Position(9 - rank, 90, 900),
    )
    model(torch.ones(7)).sum().backward()
    state.optimizer.step()
    if rank == 0:
        transfer.send(state, "beside", destination=1)
        found: dict[str, Any] = {"sizes": sizes}
    else:
        arrived, beside = transfer.receive(state, source=0)
        found = {"arrived": arrived, "beside": beside}
    content = {"state": tensors_of(state), "step": state.position.step}
    torch.save({**found, **content}, Path(options["folder"]) / f"{rank}.pt")
    process_group.leave()
    return 0


def meet_resident_rank(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Rank 0 left generation `before` after a step, with its state in memory; rank 1 is new."""
    _send_in_pieces(options)
    channel.lasting = True
    if assignment.rank:
        return train(assignment, options, channel)
    before = GenerationNumber(*options["before"])
    alone = {
        "number": before,
        "restored_from": "Checkpoint",
        "members": assignment.record.members[:1],
    }

    def poll() -> list[Decide]:
        return (
            [Decide(generation=before, decision=Decision.LEAVE)]
            if channel.step + 1 == options["step"]
            else []
        )

    channel.poll = poll  # type: ignore[method-assign]
    channel.next_assignment = lambda: assignment  # type: ignore[method-assign]
    former = assignment.model_copy(update={"record": assignment.record.model_copy(update=alone)})
    return train(former, options, channel)


def note_flushes(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Print when the history is flushed for a checkpoint, and when that is reported."""
    from regroup_trainer.checkpoint.history_writer import History

    sync, send = History.sync, channel.send

    def flush(history: History) -> None:
        sync(history)
        print("event: flushed", file=sys.stderr, flush=True)

    def send_and_note(report: RankReport) -> None:
        if isinstance(report, CheckpointSaved):
            print(f"event: {report.kind}", file=sys.stderr, flush=True)
        send(report)

    History.sync = flush  # type: ignore[method-assign, assignment]
    channel.send = send_and_note  # type: ignore[method-assign]
    return train(assignment, options, channel)


def accept_other_data(assignment: Assignment, options: Options, channel: RecordingChannel) -> int:
    """Train with another data set than the checkpoint."""
    os.environ["REGROUP_OTHER_DATA"] = "1"
    return train(assignment, options, channel)
