"""The supported versions of Python are the same wherever they are named."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools import venv
from tools.chroots import NOBLE, SUITE_OF, TRIXIE, Chroot, Suite, make_system
from tools.progress import ToolError
from tools.python_tests import chosen_version, copy_files, emptied, packages_of
from tools.pythons import ROOT, base_image_of_dockerfile, check_python, supported_pythons

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def numbers(version: str) -> tuple[int, int]:
    """Return (3, 11) for 3.11."""
    major, minor = version.split(".")
    return int(major), int(minor)


def test_requires_python_admits_the_versions_of_the_classifiers_and_no_other() -> None:
    versions = [numbers(version) for version in supported_pythons()]
    assert versions == [(3, minor) for minor in range(versions[0][1], versions[-1][1] + 1)]
    oldest, newest = versions[0][1], versions[-1][1]
    assert PYPROJECT["project"]["requires-python"] == f">=3.{oldest},<3.{newest + 1}"


def test_style_and_types_are_checked_for_what_requires_python_says() -> None:
    assert "target-version" not in PYPROJECT["tool"]["ruff"]
    assert "python_version" not in PYPROJECT["tool"]["mypy"]


def test_the_image_brings_the_agent_for_every_supported_python() -> None:
    (injected,) = re.findall(r"--injected \S+ (.*) \\", (ROOT / "Dockerfile").read_text())
    assert injected.split() == supported_pythons()


def test_the_pages_for_users_name_the_oldest_and_the_newest() -> None:
    oldest, newest = supported_pythons()[0], supported_pythons()[-1]
    for page in ("README.md", "docs/tasks/own-image.md"):
        assert f"Python {oldest} to {newest}" in (ROOT / page).read_text()


def test_the_base_image_has_a_supported_python() -> None:
    image, version = base_image_of_dockerfile()
    assert version in supported_pythons()
    assert image.endswith(SUITE_OF[version].name)


def test_every_supported_python_has_a_suite_with_its_packages() -> None:
    assert list(SUITE_OF) == supported_pythons()
    assert {"python3.14-venv", "python3.15-venv"} <= set(packages_of(SUITE_OF["3.14"]))


@pytest.mark.parametrize("version", ["3.10", "3.16"])
def test_a_python_that_is_not_supported_is_refused_with_what_to_do(version: str) -> None:
    with pytest.raises(ToolError, match=rf"{version}: make PYTHON=python3\.\d+"):
        check_python(version)


@pytest.mark.parametrize("version", supported_pythons())
def test_supported_pythons_pass(version: str) -> None:
    check_python(version)


def test_no_environment_is_made_for_a_python_that_is_not_supported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(venv, "make", lambda _: pytest.fail("it made an environment"))
    with monkeypatch.context() as old:
        old.setattr(sys, "version_info", (3, 10, 0, "final", 0))
        with pytest.raises(ToolError, match=r"is 3\.10: make"):
            venv.main()


@pytest.mark.parametrize(("given", "version"), [("3.12", "3.12"), ("python3.12", "3.12")])
def test_a_chroot_is_chosen_by_its_python(given: str, version: str) -> None:
    assert chosen_version([given]) == version


@pytest.mark.parametrize("given", ["python3", "3.10", ""])
def test_a_python_without_a_chroot_is_refused_with_the_choice(given: str) -> None:
    with pytest.raises(ToolError, match=r"one of 3\.11, "):
        chosen_version([given])


def test_a_copy_of_the_tree_has_its_files_and_keeps_the_environment(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    for path in (source / "a" / "new.py", copy / "a" / "old.py", copy / ".venv" / "python"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    copy_files(source, ["a/new.py"], copy)
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == {"a/new.py", ".venv/python"}


def test_temporary_files_do_not_fill_the_chroot_that_stays(tmp_path: Path) -> None:
    """Runs that were interrupted had left 5.6 GB there."""
    root, temporary = tmp_path / "trixie", tmp_path / "3.13.tmp"
    (temporary / "pytest-of-root").mkdir(parents=True)
    (root / "etc").mkdir(parents=True)
    chroot = Chroot(root, tmp_path, emptied(temporary))
    assert not any(temporary.iterdir())
    assert temporary.stat().st_mode & 0o7777 == 0o1777
    assert f"mount --rbind {temporary} {root / 'tmp'}" in chroot._mounts()


APT_GET = """#!/bin/sh
case "$*" in *"Origin: Debian"*) echo https://mirror.example/debian/ ;; esac
"""
DEBOOTSTRAP = """#!/bin/sh
# Begins its work, and stops half-way.
mkdir -p {folder}/trixie.unfinished
echo "$@" > {folder}/arguments
echo no such release
exit 1
"""


@pytest.fixture
def failing_debootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a debootstrap that fails on the path; return the file with its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (("apt-get", APT_GET), ("debootstrap", DEBOOTSTRAP)):
        (programs / name).write_text(script.replace("{folder}", str(tmp_path)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr("tools.chroots.ensure_packages", lambda packages, reason: None)
    return tmp_path / "arguments"


@pytest.mark.usefixtures("failing_debootstrap")
def test_a_system_that_could_not_be_made_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no such release"):
        make_system(TRIXIE, ["python3.13"], tmp_path / "trixie", keys=Path("/"))
    assert not (tmp_path / "trixie").exists()


@pytest.mark.parametrize(
    ("suite", "mirror"), [(TRIXIE, "https://mirror.example/debian/"), (NOBLE, "")]
)
def test_a_system_comes_from_the_archive_that_apt_uses_for_its_distribution(
    failing_debootstrap: Path, tmp_path: Path, suite: Suite, mirror: str
) -> None:
    with pytest.raises(ToolError):
        make_system(suite, [], tmp_path / suite.name, keys=Path("/"))
    *_, unfinished, archive, _script = failing_debootstrap.read_text().split(" ")
    assert unfinished == str(tmp_path / f"{suite.name}.unfinished")
    assert archive == mirror
