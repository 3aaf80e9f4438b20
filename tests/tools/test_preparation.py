"""What runs before there is an environment: the right Python, the right indexes, sentences instead of tracebacks."""

from __future__ import annotations

import pytest

from tools.debian import ensure_packages
from tools.indexes import index_settings
from tools.progress import ToolError
from tools.venv import check_python


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_a_python_that_is_not_supported_is_refused_with_what_to_do(version: tuple[int, int]) -> None:
    with pytest.raises(ToolError, match="make PYTHON="):
        check_python(version)


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_supported_pythons_pass(version: tuple[int, int]) -> None:
    check_python(version)


def test_the_index_of_pip_is_used_by_uv_too() -> None:
    assert index_settings({}, {"index-url": "https://mirror.example/simple"}) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple"
    }


def test_an_index_set_for_uv_itself_wins() -> None:
    settings = index_settings({"UV_DEFAULT_INDEX": "https://own.example"}, {"index-url": "https://mirror.example"})
    assert settings == {"UV_DEFAULT_INDEX": "https://own.example"}


def test_a_machine_without_apt_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match="install buildah by hand"):
        ensure_packages(["buildah"], "to build images")


def test_who_is_not_root_is_told_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("tools.debian.missing_packages", list)
    with pytest.raises(ToolError, match="sudo apt-get install buildah"):
        ensure_packages(["buildah"], "to build images")
