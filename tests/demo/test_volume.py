"""Reading a job's directory from outside while it is being written."""

from __future__ import annotations

from pathlib import Path

from demo.volume import Volume
from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.protocol.generation import GenerationNumber

FIRST, SECOND = GenerationNumber(1, 1), GenerationNumber(1, 2)


def line(generation: GenerationNumber, step: int, world: int) -> str:
    found = CommittedStep(
        generation=generation,
        step=step,
        world=world,
        epoch=0,
        first=24 * step,
        count=24,
        hash=7,
        loss=2.5,
    )
    return found.model_dump_json() + "\n"


def make_volume(folder: Path) -> Volume:
    for name in ("history", "lineage", "checkpoints"):
        (folder / name).mkdir()
    return Volume(folder)


def test_an_empty_volume_holds_nothing(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "not-there-yet")
    assert volume.last_step() is None
    assert volume.newest_checkpoint() is None
    assert volume.announced() == {}


def test_the_last_whole_line_counts_and_a_half_written_one_does_not(tmp_path: Path) -> None:
    volume = make_volume(tmp_path)
    whole = "".join(line(FIRST, step, 3) for step in range(1, 100))
    volume.layout.history_file(FIRST).write_text(whole + line(FIRST, 100, 3)[:40])
    written = volume.last_step()
    assert written is not None
    assert (written.step, written.world_size, written.generation) == (99, 3, FIRST)


def test_a_generation_without_a_step_is_skipped(tmp_path: Path) -> None:
    volume = make_volume(tmp_path)
    volume.layout.history_file(FIRST).write_text(line(FIRST, 7, 3))
    volume.layout.history_file(SECOND).write_text("")
    assert volume.first_step_after(FIRST) is None
    assert volume.last_step() == volume.last_step(FIRST)
    volume.layout.history_file(SECOND).write_text(line(SECOND, 6, 2))
    first = volume.first_step_after(FIRST)
    assert first is not None
    assert (first.step, first.world_size) == (6, 2)


def test_a_checkpoint_counts_when_it_is_published_and_whole(tmp_path: Path) -> None:
    volume = make_volume(tmp_path)
    for name in ("step-50", "step-100", "step-150.tmp-1-1", ".corrupt-step-200-1-1", "step-250"):
        (volume.layout.checkpoints / name).mkdir()
        if name != "step-250":
            (volume.layout.checkpoints / name / "manifest.json").write_text("{}")
    assert volume.newest_checkpoint() == 100


def test_reserved_generation_numbers_have_their_times(tmp_path: Path) -> None:
    volume = make_volume(tmp_path)
    claim = volume.layout.lineage / "1-2.claim"
    claim.touch()
    (volume.layout.lineage / "1-1.json").write_text("{}")
    assert volume.announced() == {SECOND: claim.stat().st_mtime}
