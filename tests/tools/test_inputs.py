"""An image is named by what it is made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.images.inputs import content_hash, input_files

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a small copy of the files that the images are made of."""
    for path in input_files(ROOT, "trainer"):
        place = tmp_path / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return tmp_path


def test_the_same_inputs_give_the_same_name(copy: Path) -> None:
    assert content_hash(copy, "trainer", {}) == content_hash(ROOT, "trainer", {})


def test_a_changed_source_gives_another_name(copy: Path) -> None:
    before = content_hash(copy, "trainer", {})
    (copy / "trainer" / "regroup_trainer" / "new.py").write_text("")
    assert content_hash(copy, "trainer", {}) != before


def test_byte_code_and_other_targets_requirements_change_nothing(copy: Path) -> None:
    before = content_hash(copy, "trainer", {})
    compiled = copy / "trainer" / "regroup_trainer" / "__pycache__"
    compiled.mkdir()
    (compiled / "new.cpython-311.pyc").write_bytes(b"")
    (copy / "requirements" / "operator.txt").write_text("other==1\n")
    assert content_hash(copy, "trainer", {}) == before


def test_build_arguments_are_part_of_the_name(copy: Path) -> None:
    assert content_hash(copy, "trainer", {"TORCH_SLIM": "1"}) != content_hash(
        copy, "trainer", {"TORCH_SLIM": "0"}
    )


def test_the_dockerfile_copies_nothing_that_the_hash_does_not_cover() -> None:
    covered = {
        path.relative_to(ROOT).as_posix()
        for target in ("operator", "trainer")
        for path in input_files(ROOT, target)
    }
    copies = [
        line.split()[1:-1]
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
    ]
    sources = [
        name
        for names in copies
        for name in names
        if not any(other.startswith("--from=") for other in names)
    ]
    assert sources
    assert not [
        name
        for name in sources
        if not any(file == name or file.startswith(f"{name}/") for file in covered)
    ]
