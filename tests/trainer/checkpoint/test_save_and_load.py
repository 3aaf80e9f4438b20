"""Real ranks save and restore; something goes wrong on the way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regroup_trainer.checkpoint.catalog import published, verify
from regroup_trainer.checkpoint.export import read_model
from regroup_trainer.checkpoint.history import audit
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.generation import Decision, GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import Finished
from tests.support.disks import mounted
from tests.support.other_user import open_to_all
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config
from tests.support.shown_states import state
from tests.support.whole_state import equal

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system or changes the user")


def steps_of(directory: Path) -> list[int]:
    return sorted(candidate.step for candidate in published(Layout(directory)))


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in Layout(directory).checkpoints.iterdir() if ".tmp-" in path.name]


def run_to(
    template: Template, directory: Path, steps: int, world_size: int = 2, **policy: Any
) -> RankOutcome:
    record = generation(
        directory, world_size, train_config(training={"steps": steps}), checkpoint=policy
    )
    outcomes = template.run(record)
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    return outcomes[0]


def following(directory: Path, world_size: int = 2, n: int = 2, **options: Any) -> GenerationRecord:
    """The next generation, which trains to step 6."""
    sections = options.pop("train", {})
    return generation(
        directory,
        world_size,
        train_config(**sections),
        number=GenerationNumber(1, n),
        **options,
    )


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def a_shard_of(directory: Path, step: int) -> Path:
    return max(
        Layout(directory).published(step).glob("*.distcp"), key=lambda path: path.stat().st_size
    )


def test_resharding_over_world_sizes_and_strategies_is_exact(
    template: Template, tmp_path: Path
) -> None:
    before = None
    chain = [(3, "ddp"), (2, "fsdp"), (1, "ddp"), (3, "fsdp"), (2, "ddp")]
    for number, (world_size, strategy) in enumerate(chain, start=1):
        folder = tmp_path / f"states-{number}"
        folder.mkdir()
        record = generation(
            tmp_path,
            world_size,
            train_config(parallelism={"strategy": strategy}, training={"steps": number}),
            number=GenerationNumber(1, number),
        )
        outcomes = template.run(
            record, entry="tests.support.rank_faults:show_state", options={"folder": str(folder)}
        )
        succeeded(outcomes)
        if before:
            assert equal(before, state(folder, "restored"))
            assert not equal(before, state(folder))
        before = state(folder)


def test_a_published_checkpoint_is_whole_and_latest_points_to_it(
    template: Template, tmp_path: Path
) -> None:
    rank0 = run_to(template, tmp_path, 4, interval_steps=2)
    newest, older = published(Layout(tmp_path))
    assert (newest.step, older.step) == (4, 2)
    assert newest.manifest
    assert verify(newest.path, newest.manifest, newest.manifest.files) == ""
    assert set(newest.manifest.files) == {path.name for path in newest.path.iterdir()} - {
        "manifest.json"
    }
    assert (newest.manifest.position, newest.manifest.tokens) == (40, 40 * 32)
    assert Layout(tmp_path).latest.resolve() == newest.path
    assert (
        rank0.saved[-1].size_bytes
        == sum(path.stat().st_size for path in newest.path.iterdir())
        - (newest.path / "manifest.json").stat().st_size
    )
    assert leftovers(tmp_path) == []


def test_training_continues_while_a_save_writes_and_the_save_is_of_its_own_step(
    template: Template, tmp_path: Path
) -> None:
    steady = generation(tmp_path / "steady", 2, train_config(training={"steps": 2}))
    assert template.run(steady)[0].exit_code == 0
    slow = generation(
        tmp_path / "slow", 2, train_config(), checkpoint={"interval_steps": 2, "keep_last": 9}
    )
    options = {"step": 2, "until": 4}
    rank0 = template.run(slow, entry="tests.support.rank_faults:write_slowly", options=options)[0]
    assert rank0.exit_code == 0, rank0.stderr
    assert [report.step for report in rank0.saved] == [2, 4, 6]  # each waited for the one before
    of_step_2 = [published_model(tmp_path / run, 2) for run in ("steady", "slow")]
    assert equal(*of_step_2)


def published_model(directory: Path, step: int) -> dict[str, torch.Tensor]:
    """The whole model as it lies in a checkpoint."""
    return read_model(Layout(directory).published(step))


def test_old_checkpoints_go_and_every_mth_stays(template: Template, tmp_path: Path) -> None:
    run_to(template, tmp_path, 9, 1, interval_steps=1, keep_last=2, keep_every_steps=3)
    assert steps_of(tmp_path) == [3, 6, 8, 9]


@pytest.mark.parametrize(
    ("rank", "where"), [(1, "shard_file.write"), (0, "shard_file.write"), (0, "save.publish")]
)
def test_a_kill_during_a_save_leaves_the_older_checkpoint(
    template: Template, tmp_path: Path, rank: int, where: str
) -> None:
    killed = template.run(
        generation(tmp_path, 2, train_config(), checkpoint={"interval_steps": 2}),
        entry="tests.support.rank_faults:die_while_saving",
        options={"rank": rank, "step": 4, "where": where},
    )
    assert sorted(outcome.exit_code for outcome in killed) == [PEER_LOST_EXIT_CODE, 137], killed[
        1 - rank
    ].stderr
    assert steps_of(tmp_path) == [2]
    rank0 = template.run(following(tmp_path))[0]
    assert rank0.restored.step == 2
    assert leftovers(tmp_path) == []
    assert audit(tmp_path) == []


@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "missing file", "manifest"])
def test_a_corrupt_newest_checkpoint_is_set_aside_and_reported(
    template: Template, tmp_path: Path, damage: str
) -> None:
    run_to(template, tmp_path, 4, interval_steps=2)
    shard, directory = a_shard_of(tmp_path, 4), Layout(tmp_path).published(4)
    if damage == "flipped bit":
        flip_a_bit(shard)
    elif damage == "truncated":
        os.truncate(shard, 100)
    elif damage == "missing file":
        shard.unlink()
    else:
        os.truncate(directory / "manifest.json", 50)
    rank0 = template.run(following(tmp_path, 3))[0]
    assert rank0.exit_code == 0, rank0.stderr
    assert rank0.restored.step == 2
    (skipped,) = rank0.restored.skipped
    assert shard.name in skipped.why or "manifest.json is damaged" in skipped.why
    assert Path(skipped.path).name == ".corrupt-step-4-1-2"
    assert Path(skipped.path).is_dir()
    assert audit(tmp_path) == []


def test_when_all_checkpoints_are_corrupt_nothing_starts_over_silently(
    template: Template, tmp_path: Path
) -> None:
    run_to(template, tmp_path, 4, interval_steps=2)
    for step in (2, 4):
        flip_a_bit(a_shard_of(tmp_path, step))
    for n in (2, 3):  # also at the next attempt, when they have been set aside
        outcomes = template.run(following(tmp_path, n=n))
        assert [outcome.exit_code for outcome in outcomes] == [2, 2]
        assert f"all checkpoints in {tmp_path}/checkpoints are corrupt" in outcomes[0].stderr
        assert "resume.policy: Never" in outcomes[0].stderr
    scratch = template.run(following(tmp_path, n=4, resume={"policy": "Never"}))[0]
    assert (scratch.exit_code, scratch.restored.step) == (0, 0)


@root_only
def test_a_directory_that_is_not_writable_is_named_with_the_user_and_the_remedy(
    template: Template, tmp_path: Path
) -> None:
    open_to_all(tmp_path)
    text = tmp_path / "text.py"
    text.write_text("x" * 10_000)
    directory = tmp_path / "job"
    directory.mkdir(mode=0o755)
    record = generation(directory, 2, train_config(data={"paths": [str(text)]}))
    outcomes = template.run(record, entry="tests.support.rank_faults:as_other_user")
    assert [outcome.exit_code for outcome in outcomes] == [1, 1], outcomes[0].stderr
    expected = (
        f"checkpoint directory {directory}/checkpoints is not writable for user 1000 (Permission "
        "denied): make it"
    )
    assert expected in outcomes[0].stderr
    assert outcomes[0].progress == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_write_fails_the_save_and_not_the_training(
    template: Template, tmp_path: Path, rank: int
) -> None:
    outcomes = template.run(
        generation(tmp_path, 2, train_config(), checkpoint={"interval_steps": 2}),
        entry="tests.support.rank_faults:limit_file_size",
        options={"rank": rank, "step": 4, "bytes": 5000},
    )
    rank0 = outcomes[0]
    succeeded(outcomes)
    assert [(report.step, report.stage) for report in rank0.failed] == [(4, "write")]
    assert f"rank {rank}: " in rank0.failed[0].error
    assert [report.step for report in rank0.saved] == [2, 6]
    assert leftovers(tmp_path) == []
    assert audit(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MiB."""
    with mounted(tmp_path / "disk", "1536k") as disk:
        yield disk


@root_only
def test_a_full_disk_fails_saves_frees_what_they_wrote_and_the_result_waits_until_there_is_room(
    template: Template, small_disk: Path
) -> None:
    hog = small_disk / "hog"
    hog.write_bytes(bytes(1_300_000))
    record = generation(small_disk / "job", 2, train_config(), checkpoint={"interval_steps": 2})
    options = {"hog": str(hog), "failures": 4}
    rank0 = template.run(record, entry="tests.support.rank_faults:free_the_disk", options=options)[
        0
    ]
    assert [report.step for report in rank0.failed] == [2, 4, 6, 6], rank0.stderr
    assert f"bytes are free in {small_disk}/job/checkpoints" in rank0.failed[0].error
    assert len(rank0.losses) == 6
    assert rank0.exit_code == 0, rank0.stderr
    assert [report.step for report in rank0.saved] == [6]
    assert leftovers(small_disk / "job") == []


@root_only
def test_a_result_for_which_there_is_no_room_does_not_keep_a_job_that_is_to_end_without_it(
    template: Template, small_disk: Path
) -> None:
    (small_disk / "hog").write_bytes(bytes(1_300_000))
    record = generation(
        small_disk / "job", 2, train_config(), checkpoint={"on_termination": "Skip"}
    )
    outcomes = succeeded(template.run(record, decisions={6: Decision.STOP}))
    assert [end.reason for outcome in outcomes for end in outcome.of(Finished)] == ["stop", "stop"]
    assert outcomes[0].saved == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"seed": 6}}, "training.seed: 6 differs from 5"),
        ({"training": {"global_batch_size": 11}}, "training.globalBatchSize: 11 differs from 10"),
        ({"data": {"paths": [__file__]}}, "data.paths: the fingerprint of the text: "),
        ({"model": {"preset": "1m"}}, "model: {'name': 'gpt', 'layers': 5"),
    ],
)
def test_a_run_that_no_longer_fits_its_checkpoint_is_refused_with_both_values(
    template: Template, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run_to(template, tmp_path, 2)
    rank0 = template.run(following(tmp_path, train=change))[0]
    assert rank0.exit_code == 2
    assert message in rank0.stderr
    assert "or set resume.policy: Never to start from scratch" in rank0.stderr


def test_a_model_made_without_scaling_goes_on_with_the_field_of_the_refusal(
    template: Template, tmp_path: Path
) -> None:
    size = {"layers": 1, "heads": 1, "width": 8}
    unscaled = {"name": "llama", "preset": None, "dimensions": size}
    scaled = {**unscaled, "dimensions": {**size, "rotary_scaling": {"factor": 2}}}
    begun = train_config(model=unscaled, training={"steps": 2})
    succeeded(template.run(generation(tmp_path, 2, begun)))
    rank0 = template.run(following(tmp_path, train={"model": scaled}))[0]
    assert rank0.exit_code == 2
    field = re.search(r"set model\.dimensions: (\{.*\}) and no model\.preset", rank0.stderr)
    assert field, rank0.stderr
    given = {**unscaled, "dimensions": json.loads(field[1])}
    outcomes = succeeded(template.run(following(tmp_path, n=3, train={"model": given})))
    assert outcomes[0].restored.step == 2


def test_a_superseded_generation_publishes_nothing(template: Template, tmp_path: Path) -> None:
    outcomes = template.run(
        generation(tmp_path, 2, train_config(), checkpoint={"interval_steps": 2}),
        entry="tests.support.rank_faults:supersede_after_step",
        options={"step": 3},
    )
    assert [outcome.exit_code for outcome in outcomes] == [PEER_LOST_EXIT_CODE] * 2
    assert "generation 2.1 has begun: generation 1.1 is over" in outcomes[0].stderr
    assert steps_of(tmp_path) in ([], [2])  # that of step 2 may have been under way
    assert leftovers(tmp_path) == []


def test_never_starts_over_once_and_its_successors_continue(
    template: Template, tmp_path: Path
) -> None:
    run_to(template, tmp_path, 4)
    never = {"policy": "Never"}
    record = following(tmp_path, n=2, resume=never, train={"training": {"steps": 2}})
    assert template.run(record)[0].restored.step == 0
    assert template.run(following(tmp_path, n=3, resume=never))[0].restored.step == 2
    assert audit(tmp_path) == []


def test_a_named_step_is_resumed_and_a_missing_one_lists_those_there(
    template: Template, tmp_path: Path
) -> None:
    run_to(template, tmp_path, 6, interval_steps=2)
    missing = template.run(following(tmp_path, resume={"policy": "Step", "step": 3}))[0]
    assert missing.exit_code == 2
    assert "resume.step: there is no checkpoint of step 3: choose one of 6, 4, 2" in missing.stderr
    named = template.run(following(tmp_path, n=3, resume={"policy": "Step", "step": 2}))[0]
    assert named.restored.step == 2
    assert len(named.losses) == 4
    assert (
        any(path.name == ".stale-step-4-1-3" for path in Layout(tmp_path).checkpoints.iterdir())
        is False
    )
    assert audit(tmp_path) == []
