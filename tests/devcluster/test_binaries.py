"""Programs are built once, and what is missing for that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import binaries, packages
from devcluster.cluster import preflight
from devcluster.errors import UnsupportedMachineError
from devcluster.progress import silent


def test_without_go_it_says_which_go_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_user_without_root_is_told_to_become_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match="run it as root"):
        preflight()


def test_missing_packages_are_named_where_they_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UnsupportedMachineError, match="install the packages nothing-of-that-name"):
        packages.ensure({"no-such-program": "nothing-of-that-name"}, silent)
