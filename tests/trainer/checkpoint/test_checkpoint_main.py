"""What `regroup checkpoint` shows, and what it exits with."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from regroup.local.checkpoint_list import read_verifications
from regroup_trainer.checkpoint import catalog, publish
from regroup_trainer.checkpoint.commands import main
from regroup_trainer.checkpoint.layout import MANIFEST, Layout
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.checkpoints import begin, write_checkpoint


@pytest.fixture
def layout(layout: Layout) -> Layout:
    """Checkpoints of steps 2, 4, 6 and 8, of which 8 is of an abandoned line."""
    first = begin(layout, 1)
    begin(layout, 2, resumed=6, parent=1)
    for step in (2, 4, 6, 8):
        write_checkpoint(layout, step, first)
    return layout


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_summaries_of_all_commands_are_whole_in_eighty_columns() -> None:
    shown = run("--help").output
    assert "list" in shown
    assert "..." not in shown.partition("Commands:")[2]


def test_the_list_shows_which_checkpoints_can_be_resumed(layout: Layout) -> None:
    shown = run("list", layout.directory)
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines()]
    assert [row[0] for row in rows] == ["STEP", "8", "6", "4", "2"]
    assert [row[-1] for row in rows] == ["STATE", "abandoned", *["resumable"] * 3]
    facts = json.loads(run("list", layout.directory, "--json").output)
    assert [(fact["step"], fact["resumable"]) for fact in facts] == [
        (8, False),
        (6, True),
        (4, True),
        (2, True),
    ]


def test_a_job_that_has_saved_nothing_is_a_job(tmp_path: Path) -> None:
    Layout(tmp_path).lineage.mkdir()
    shown = run("list", tmp_path)
    assert shown.exit_code == 0
    assert shown.output == f"{tmp_path / 'checkpoints'} holds no checkpoint\n"
    assert "holds no checkpoint" in run("verify", tmp_path).output
    (tmp_path / "other").mkdir()
    assert "is no job's directory" in run("list", tmp_path / "other").output


def test_the_list_of_a_long_run_fits_eighty_columns(layout: Layout) -> None:
    """In a pipe too; what is wrong with one stands below, as `verify` says it."""
    step, number = 1_234_567, GenerationNumber(12, 345)
    write_checkpoint(layout, step, number)
    change_manifest(layout, step, world_size=1024, files={"a": {"size": 2**30, "checksum": ""}})
    (layout.published(4) / MANIFEST).write_text("{")
    header, *rows, damage = run("list", layout.directory).output.splitlines()
    assert header.split() == ["STEP", "SAVED", "SIZE", "RANKS", "STRATEGY", "GEN", "STATE"]
    assert max(map(len, (header, *rows))) <= 80
    assert rows[0].startswith("1234567  ")
    assert rows[0].split()[-6:] == ["1.0", "GiB", "1024", "ddp", "12.345", "abandoned"]
    assert [row.index(row.split()[-1]) for row in rows] == [header.index("STATE")] * len(rows)
    assert rows[3].split() == ["4", "damaged"]
    assert damage.startswith("step 4: damaged: manifest.json is damaged")


def test_verify_names_what_is_damaged_and_fails(layout: Layout) -> None:
    assert run("verify", layout.directory).exit_code == 0
    (layout.published(4) / "__0_0.distcp").write_bytes(b"shark")
    found = run("verify", layout.directory)
    assert found.exit_code == 1
    assert "step 4: damaged: __0_0.distcp has checksum" in found.output
    verifications = read_verifications(found.stdout.splitlines())
    assert [(one.step, one.whole) for one in verifications] == [
        (8, True),
        (6, True),
        (4, False),
        (2, True),
    ]
    assert verifications[2].problem.startswith("__0_0.distcp has checksum")
    assert run("verify", layout.directory, "--step", 6).exit_code == 0
    missing = run("verify", layout.directory, "--step", 5)
    assert "--step 5: not in" in missing.output
    assert "choose one of 8, 6, 4, 2" in missing.output


@pytest.mark.parametrize("command", ["list", "verify", "export"])
def test_what_cannot_be_read_is_no_damage(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    out = ("--out", layout.directory / "out") if command == "export" else ()
    found = run(command, layout.directory, *out)
    assert found.exit_code == 3
    assert "Permission denied: this says nothing about the checkpoints" in found.output


def change_manifest(layout: Layout, step: int, **changes: object) -> None:
    path = layout.published(step) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_a_manifest_says_is_shown_as_text(layout: Layout) -> None:
    change_manifest(layout, 6, strategy="[red]a\x1b")
    shown = run("list", layout.directory).output
    assert r"[red]a\x1b" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../../../secret": {"size": 1, "checksum": "0"}}},
        {"files": {"/etc/passwd": {"size": 1, "checksum": "0"}}},
        {"time": 1e300},
    ],
)
def test_a_manifest_with_a_path_or_an_impossible_time_is_damaged(
    layout: Layout, changes: dict[str, object]
) -> None:
    (layout.directory / "secret").write_text("what no message may say the size of")
    change_manifest(layout, 6, **changes)
    assert run("list", layout.directory).exit_code == 0
    assert "manifest.json is damaged (1 errors)" in run("verify", layout.directory).output


def test_prune_keeps_what_the_options_say(layout: Layout) -> None:
    tried = run("prune", layout.directory, "--keep-last", 1, "--keep-every-steps", 4, "--dry-run")
    assert "step 2: would go" in tried.output
    assert layout.published(2).exists()
    run("prune", layout.directory, "--keep-last", 1, "--keep-every-steps", 4)
    assert sorted(path.name for path in layout.checkpoints.iterdir()) == [
        "step-4",
        "step-6",
        "step-8",
    ]


def test_prune_leaves_what_a_generation_that_begins_meanwhile_resumes_from(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = catalog.removable

    def choose_and_dally(*arguments: Any) -> list[int]:
        chosen = choose(*arguments)
        begin(layout, 3, resumed=2, parent=2)
        return chosen

    monkeypatch.setattr(catalog, "removable", choose_and_dally)
    failed = run("prune", layout.directory, "--keep-last", 1)
    assert failed.exit_code == 1
    assert f"generation {GenerationNumber(1, 3)} has begun" in failed.output
    assert layout.published(2).exists()


def test_a_damaged_checkpoint_is_not_exported(layout: Layout) -> None:
    (layout.published(6) / "__0_0.distcp").write_bytes(b"shark")
    failed = run("export", layout.directory, "--out", layout.directory / "out")
    assert failed.exit_code == 1
    assert "step-6 is damaged: __0_0.distcp has checksum" in failed.output


def test_a_job_that_has_not_saved_has_nothing_to_export(layout: Layout) -> None:
    for step in (2, 4, 6):
        publish.remove(layout, step, GenerationNumber(1, 2))
    failed = run("export", layout.directory, "--out", "-")
    assert failed.exit_code == 1
    assert "holds no checkpoint to resume from" in failed.output


def test_a_folder_that_is_no_job_directory_is_refused_with_what_to_name(tmp_path: Path) -> None:
    failed = run("list", tmp_path)
    assert failed.exit_code == 1
    assert "is no job's directory" in failed.output
