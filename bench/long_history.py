"""What a start reads of a long run: lineage, history and manifests, by generations and ranks.

    make bench NAME=long_history [ARGS=--quick]

A job's directory is written as so many generations of 1,000 steps leave it, with a checkpoint for
each 100,000 steps; a checkpoint has an empty file for each rank. Then one process each measures

- `restart`: what rank 0 reads until the first line of a new generation's history is written;
- `distant`: the same where each open takes 1 ms longer, as on a network volume;
- `save`: what rank 0 reads to find the checkpoints that may go;
- `list`: `regroup checkpoint list`;
- `replay`: the audit of all steps, of one sample each;
- `prune`: `regroup checkpoint prune`, which deletes all checkpoints but three;
- `coordinator`: a restarted coordinator's search for a free number, then a successor's, and its
  search for its predecessor.

`seconds` are on the wall, with the files in the page cache, `cpu` seconds of the processor, `mb`
the peak of the process's memory, `opens` the files that it opened. `broadcast_mb` is what rank 0
sends to each rank of what it found.
"""

from __future__ import annotations

import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from bench.harness import Goal, Plan, Values, command
from regroup_trainer.checkpoint import catalog, commands, history, lineage, publish
from regroup_trainer.checkpoint.history_writer import Beginning, History
from regroup_trainer.checkpoint.layout import (
    MANIFEST,
    DataIdentity,
    FileRecord,
    Layout,
    Manifest,
)
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.checkpoint.selection import Selection, select
from regroup_trainer.coordinator.serving.number_files import newest_former, reserve
from regroup_trainer.data.order import SampleOrder, digest
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import reservation_name
from tests.support.generations import make_generation

SIZES = {
    "100 generations, 8 ranks": (100, 8),
    "1000 generations, 64 ranks": (1000, 64),
    "10000 generations, 64 ranks": (10_000, 64),
    "10000 generations, 8192 ranks": (10_000, 8192),
}
STEPS = 1000
"""Of each generation."""
STEPS_BETWEEN_CHECKPOINTS = 100_000
OPERATIONS = ("restart", "distant", "save", "list", "replay", "prune", "coordinator")
UNITS = {
    f"{operation}_{unit}": unit
    for operation in OPERATIONS
    for unit in ("seconds", "cpu", "mb", "opens")
} | {"broadcast_mb": "MB"}  # fmt: skip
OPEN_SECONDS = 0.001
MOST_RESTART_SECONDS = 5.0
DATA = DataIdentity(
    fingerprint="f" * 64, samples=10**6, seed=0, global_batch_size=1, sequence_length=8
)
_DEADLINE = 600.0


@dataclass(frozen=True)
class LongRun:
    """A job's directory, and the size of what it holds."""

    directory: Path
    generations: int
    ranks: int

    @property
    def layout(self) -> Layout:
        """Its paths."""
        return Layout(self.directory)

    @property
    def newest(self) -> GenerationNumber:
        """The newest generation that began."""
        return GenerationNumber(1, self.generations)

    @property
    def steps(self) -> int:
        """Steps of all generations."""
        return self.generations * STEPS


def plan(quick: bool) -> Plan:
    """Each size once: the table has a row for each thing that is read."""
    sizes = tuple(SIZES)[:1] if quick else tuple(SIZES)
    return Plan("long_history", sizes, ("regroup",), UNITS, 1, goals=goals)


def goals(_case: str, _subject: str) -> Mapping[str, Goal]:
    """What is asked of a restart, after a long run too."""
    return {"restart_seconds": Goal(MOST_RESTART_SECONDS)}


def measure(case: str, _subject: str) -> Values:
    """All operations on a directory of this size."""
    generations, ranks = SIZES[case]
    with tempfile.TemporaryDirectory() as folder:
        run = LongRun(Path(folder), generations, ranks)
        write(run)
        chosen = select(run.layout, make_generation(2, 1))
        sent = (chosen, first_of(chosen, run.layout))
        found: dict[str, float | None] = {"broadcast_mb": len(pickle.dumps(sent)) / 1e6}
        for operation in OPERATIONS:
            found |= in_own_process(operation, run)
        return found


def write(run: LongRun) -> None:
    """Write lineage, history and checkpoints of a run without losses."""
    for folder in (run.layout.lineage, run.layout.history):
        folder.mkdir()
    for n in range(1, run.generations + 1):
        write_generation(run, GenerationNumber(1, n))
    last = run.steps // STEPS_BETWEEN_CHECKPOINTS
    for number in range(1, max(2, last + 1)):
        write_checkpoint(run, number * min(STEPS_BETWEEN_CHECKPOINTS, run.steps))


def write_generation(run: LongRun, number: GenerationNumber) -> None:
    """A generation that made its steps."""
    parent = GenerationNumber(1, number.n - 1) if number.n > 1 else None
    order = SampleOrder(DATA.samples, DATA.seed)
    begin(run.layout, number, (number.n - 1) * STEPS, parent)
    (run.layout.lineage / reservation_name(number)).touch()
    with run.layout.history_file(number).open("w") as file:
        for step in range((number.n - 1) * STEPS + 1, number.n * STEPS + 1):
            # As pydantic writes it, in a tenth of the time.
            file.write(
                f'{{"generation":[1,{number.n}],"step":{step},"world":{run.ranks},"epoch":'
                f'{(step - 1) // DATA.samples},"first":{step - 1},"count":1,'
                f'"hash":{digest([order.sample(step - 1)])},"loss":2.345678901234567}}\n'
            )


def begin(
    layout: Layout, number: GenerationNumber, resumed: int, parent: GenerationNumber | None
) -> None:
    """Write the lineage record of a generation."""
    record = LineageRecord(
        generation=number,
        parent=parent,
        resumed_from_step=resumed,
        resume=ResumePolicy(),
        data=DATA,
    )
    layout.lineage_record(number).write_text(record.model_dump_json())


def write_checkpoint(run: LongRun, step: int) -> None:
    """Write a checkpoint; its files are not read here, but deleted."""
    folder = run.layout.published(step)
    folder.mkdir(parents=True)
    manifest = Manifest(
        step=step,
        position=step,
        tokens=step,
        generation=GenerationNumber(1, -(-step // STEPS)),
        world_size=run.ranks,
        strategy="fsdp",
        model={"name": "gpt"},
        data=DATA,
        torch="2",
        time=0.0,
        files={f"__{rank}_0.distcp": FileRecord(size=2**30, checksum="0" * 16)
               for rank in range(run.ranks)},
    )  # fmt: skip
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    for name in manifest.files:
        (folder / name).touch()


def restart(run: LongRun) -> None:
    """What rank 0 reads before the first step, in the order of `rank.entering`."""
    record = make_generation(2, 1)
    chosen = select(run.layout, record)
    for _ in ("verified", "loaded"):  # it is read again, to see that it is still there
        first_of(chosen, run.layout)
    begin(run.layout, record.number, run.steps, chosen.parent)
    history.history_end(run.layout, lineage.ending_with(run.layout, record.number)[:-1])
    written = History(run.layout, record.number, Beginning(run.steps))
    written.append(history.CommittedStep.model_validate_json(last_line(run)))
    written.sync()
    written.close(_DEADLINE)
    run.layout.lineage_record(record.number).unlink()
    run.layout.history_file(record.number).unlink()


def first_of(chosen: Selection, layout: Layout) -> catalog.Candidate[Manifest]:
    """What a start loads, with all of its manifest."""
    return catalog.read_candidate(layout, chosen.candidates[0].step)


def last_line(run: LongRun) -> str:
    """The last line of the history."""
    return run.layout.history_file(run.newest).read_text().splitlines()[-1]


def save(run: LongRun) -> None:
    """What rank 0 reads after a save."""
    lineage.require_newest(run.layout, run.newest)
    publish.superfluous(run.layout, run.newest, CheckpointPolicy())


def coordinator(run: LongRun) -> None:
    """The container of the first coordinator restarts, then a successor begins."""
    reserve(run.directory, GenerationNumber(1, 1))
    newest_former(run.directory, 2)
    reserve(run.directory, GenerationNumber(2, 1))


def list_checkpoints(run: LongRun) -> None:
    """`regroup checkpoint list`."""
    cli("list", str(run.directory))


def prune(run: LongRun) -> None:
    """`regroup checkpoint prune`."""
    cli("prune", str(run.directory), "--keep-last", "3")


def replay(run: LongRun) -> None:
    """The audit, which must find nothing."""
    problems = history.audit(run.directory)
    if problems:
        sys.exit(f"the audit found: {problems[0]}")


def cli(*arguments: str) -> None:
    """A command of `regroup checkpoint`."""
    result = CliRunner().invoke(commands.main, arguments)
    if result.exit_code:
        sys.exit(result.output)


ACTIONS: dict[str, Callable[[LongRun], None]] = {
    "restart": restart, "distant": restart, "save": save, "coordinator": coordinator,
    "list": list_checkpoints, "prune": prune, "replay": replay,
}  # fmt: skip


def in_own_process(operation: str, run: LongRun) -> dict[str, float | None]:
    """Seconds, peak memory and opened files of an operation."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (operation, run))


def measured(operation: str, run: LongRun) -> dict[str, float | None]:
    """Carry out an operation in this process, which does nothing else."""
    opened: list[str] = []

    def note(event: str, _arguments: object) -> None:
        if event == "open":
            opened.append(event)
            time.sleep(OPEN_SECONDS if operation == "distant" else 0.0)

    if operation == "save":
        save(run)  # the start of the generation has read the lineage before
    sys.addaudithook(note)
    began, used = time.monotonic(), time.process_time()
    ACTIONS[operation](run)
    return {
        f"{operation}_seconds": time.monotonic() - began,
        f"{operation}_cpu": time.process_time() - used,
        f"{operation}_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        f"{operation}_opens": len(opened),
    }


main = command(plan, measure)

if __name__ == "__main__":
    main()
