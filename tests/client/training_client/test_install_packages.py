"""The program of the init container, with a real pip and an index of files."""

from __future__ import annotations

import ensurepip
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from regroup.training_client import install_packages

BUNDLED = Path(ensurepip.__file__).parent / "_bundled"
PIP = next(BUNDLED.glob("pip-*.whl"), None)
needs_pip = pytest.mark.skipif(PIP is None, reason="this Python brings no pip")


def make_wheel(folder: Path, name: str, *needs: str) -> None:
    """A package without a line of code."""
    record, info = f"{name}-1.0.dist-info/RECORD", f"{name}-1.0.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"]
    metadata += [f"Requires-Dist: {need}\n" for need in needs]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", "".join(metadata))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(record, f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{record},,\n")


def install(tmp_path: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    """Run the program as an init container does."""
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PIP),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, install_packages.__file__, str(tmp_path / "out"), *packages]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@needs_pip
def test_only_what_the_image_lacks_is_installed(tmp_path: Path) -> None:
    make_wheel(tmp_path, "needed")
    make_wheel(tmp_path, "wanted", "needed", "pydantic>=1")
    (tmp_path / "out").mkdir()
    done = install(tmp_path, "wanted")
    assert done.returncode == 0, done.stderr
    modules = sorted(path.name for path in (tmp_path / "out").glob("*.py"))
    assert modules == ["needed.py", "wanted.py"]
    assert not (tmp_path / "out/pydantic").exists()
    assert not (tmp_path / "out/.report.json").exists()


@needs_pip
def test_what_is_there_already_and_what_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = install(tmp_path, "pydantic")
    assert done.returncode == 0
    assert done.stdout.endswith("\npackages: the image has them all\n")
    done = install(tmp_path, "nobody-has-this")
    assert done.returncode == 1
    assert "No matching distribution found for nobody-has-this" in done.stderr


def test_an_image_without_pip_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install_packages, "pip_command", list)
    assert install_packages.main("/nowhere", ["einops"]) == 2
    assert "this image has no pip: choose an image with pip" in capsys.readouterr().err


def test_a_direct_address_is_installed_from_there() -> None:
    entry = {"metadata": {"name": "x", "version": "1"}, "download_info": {"url": "https://h/x"}}
    assert install_packages.wanted(entry) == "x==1"
    assert install_packages.wanted({**entry, "is_direct": True}) == "x @ https://h/x"
