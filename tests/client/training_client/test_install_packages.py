"""The program of the init container, with a real pip and an index of files."""

from __future__ import annotations

import ensurepip
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from regroup.training_client import install_packages
from tests.support.package_index import Index, make_wheel

BUNDLED = Path(ensurepip.__file__).parent / "_bundled"
FOLDER = sysconfig.get_config_var("WHEEL_PKG_DIR") or BUNDLED  # Debian has them elsewhere
PIP = next(Path(FOLDER).glob("pip-*.whl"), None)
needs_pip = pytest.mark.skipif(PIP is None, reason="this Python brings no pip")


def install(
    tmp_path: Path, *packages: str, index: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program as an init container does. `index`: its variables, by default of a folder."""
    folder = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PIP),
        "HOME": str(tmp_path),
        **(folder if index is None else index),
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


@needs_pip
def test_an_index_is_asked_and_one_that_is_away_is_named_without_its_password(
    tmp_path: Path,
) -> None:
    make_wheel(tmp_path, "wanted")
    (tmp_path / "out").mkdir()
    with Index(tmp_path, "127.0.0.1") as server:
        index = {"PIP_INDEX_URL": server.url, "PIP_RETRIES": "0"}
        done = install(tmp_path, "wanted", index=index)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out/wanted.py").exists()
        other = install(tmp_path, "nobody-has-this", index=index)
        assert other.stderr.endswith("No matching distribution found for nobody-has-this\n")
    away = install(tmp_path, "wanted", index=index)
    assert away.returncode == 1
    last = away.stderr.splitlines()[-1]
    assert last.startswith("packages: wanted: the index 127.0.0.1:")
    assert "is not reached from this pod ([Errno 111] Connection refused): check" in last
    assert "secret" not in away.stdout + last


@needs_pip
def test_an_index_that_asks_for_a_password_gets_the_one_of_its_address_and_logs_do_not(
    tmp_path: Path,
) -> None:
    make_wheel(tmp_path, "wanted")
    (tmp_path / "out").mkdir()
    with Index(tmp_path, "127.0.0.1", asks_for="hunter2") as server:
        wrong = server.url_with("user:hunter3@")
        refused = install(tmp_path, "wanted", index={"PIP_INDEX_URL": wrong})
        done = install(tmp_path, "wanted", index={"PIP_INDEX_URL": server.url})
    assert (refused.returncode, done.returncode) == (1, 0), done.stderr
    assert (tmp_path / "out/wanted.py").exists()
    last = refused.stderr.splitlines()[-1]
    assert "refuses this pod (HTTP status 401): give a name and a password" in last
    assert "hunter" not in refused.stdout + refused.stderr + done.stdout + done.stderr


@needs_pip
def test_an_index_without_tls_is_used_where_its_owner_trusts_it(tmp_path: Path) -> None:
    """pip trusts the addresses of its own machine in any case."""
    make_wheel(tmp_path, "wanted")
    (tmp_path / "out").mkdir()
    with Index(tmp_path, "127.0.0.1") as server:
        trusted = {"PIP_INDEX_URL": server.url, install_packages.TRUSTED: "1"}
        done = install(tmp_path, "wanted", index=trusted)
    assert done.returncode == 0, done.stderr
    other = {"PIP_INDEX_URL": "http://user:secret@[2001:db8::1]:3141/simple"}
    problem = install_packages.index_problem(other)
    assert problem.startswith("pip does not trust the index 2001:db8::1:3141, which is reached")
    options = install_packages.trust_options({**other, install_packages.TRUSTED: "1"})
    assert options == ["--trusted-host", "[2001:db8::1]:3141"]
    assert install_packages.trust_options(other) == []


def test_an_index_without_an_address_or_behind_a_proxy_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    assert install_packages.index_problem({}) == ""
    assert "is none" in install_packages.index_problem({"PIP_INDEX_URL": "http://[x"})
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert install_packages.index_problem({"PIP_INDEX_URL": "http://127.0.0.1:1"}) == ""


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
