"""What runs before there is an environment: the right indexes, sentences instead of tracebacks."""

from __future__ import annotations

import pytest

from tools.debian import ensure_packages
from tools.indexes import index_settings
from tools.progress import ToolError


def test_the_index_of_pip_is_used_by_uv_too() -> None:
    assert index_settings({}, {"index-url": "https://mirror.example/simple"}) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple"
    }


def test_an_index_set_for_uv_itself_wins() -> None:
    settings = index_settings(
        {"UV_DEFAULT_INDEX": "https://own.example"}, {"index-url": "https://mirror.example"}
    )
    assert settings == {"UV_DEFAULT_INDEX": "https://own.example"}


def test_without_apt_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolError, match="install buildah by hand"):
        ensure_packages(["buildah"], "to build images")


def test_without_root_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("tools.debian.missing_packages", list)
    with pytest.raises(ToolError, match="sudo apt-get install buildah"):
        ensure_packages(["buildah"], "to build images")
