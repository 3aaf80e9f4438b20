"""Programs are built once, and an error names what the build lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from devcluster import binaries, packages, versions
from devcluster.errors import CommandFailedError, DevclusterError, UnsupportedMachineError
from devcluster.machine import preflight
from devcluster.progress import silent
from tests.support.fake_go import install_fake_go


def test_without_go_the_error_names_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REGROUP_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedMachineError, match=r"install Go 1\.\d+\.\d+ or newer"):
        binaries.build(silent)


def test_a_go_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UnsupportedMachineError, match="too old"):
        binaries.check_go("go 1.26.0\n")


def test_without_root_the_error_asks_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match="run it as root"):
        preflight()


def test_missing_packages_are_named_where_they_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match="apt-get install nothing-of-that-name"):
        packages.ensure({"no-such-program": "nothing-of-that-name"}, silent)


@pytest.fixture
def fake_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Go that builds at once; returns the file that has a line per built program."""
    return install_fake_go(monkeypatch, tmp_path)


def test_an_interrupted_build_leaves_nothing_that_looks_complete(
    fake_go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "./pause")
    with pytest.raises(CommandFailedError):
        binaries.build(silent)
    assert not binaries.folder().exists()
    monkeypatch.setenv("FAIL", "")
    built = binaries.build(silent)
    assert all((built / program.name).exists() for program in binaries.PROGRAMS)


def test_a_second_build_builds_nothing(fake_go: Path) -> None:
    first = binaries.build(silent)
    count = len(fake_go.read_text().splitlines())
    assert binaries.build(silent) == first
    assert len(fake_go.read_text().splitlines()) == count == len(binaries.PROGRAMS)


def test_programs_whose_sources_did_not_change_are_reused(
    fake_go: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = binaries.build(silent)
    changed = tmp_path / "go-module"
    shutil.copytree(versions.GO_MODULE, changed)
    with (changed / "pause" / "main.go").open("a") as source:
        source.write("// changed\n")
    monkeypatch.setattr(versions, "GO_MODULE", changed)
    second = binaries.build(silent)
    assert second != first
    assert len(fake_go.read_text().splitlines()) == len(binaries.PROGRAMS) + 1


@pytest.mark.usefixtures("fake_go")
def test_a_module_with_another_checksum_is_not_used() -> None:
    module = ("example.org/module", "v1.0.0")
    assert binaries.module_sources(*module, "h1:of-the-module") == Path("/cache/module")
    with pytest.raises(DevclusterError, match=r"v1\.0\.0 has the checksum h1:of-the-module"):
        binaries.module_sources(*module, "h1:expected")
