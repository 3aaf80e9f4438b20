"""How the benchmark of scale gets torchft's lighthouse."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale import lighthouse_package
from bench.scale.__main__ import measure
from tools.progress import ToolError


@pytest.fixture(autouse=True)
def _cache_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROUP_CACHE", str(tmp_path))
    monkeypatch.setattr(lighthouse_package, "uv_binary", lambda: Path("uv"))
    lighthouse_package.lighthouse_library.cache_clear()


def test_the_library_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def install(_uv: Path, *arguments: str) -> None:
        fetched.append(arguments[-1])
        folder = Path(arguments[arguments.index("--target") + 1]) / "torchft"
        folder.mkdir(parents=True)
        (folder / "_torchft.cpython-311.so").touch()

    monkeypatch.setattr(lighthouse_package, "run_uv", install)
    lines: list[str] = []
    library = lighthouse_package.lighthouse_library(lines.append)
    again = lighthouse_package.lighthouse_library(print)
    assert library is not None
    assert library.exists()
    assert again == library
    assert fetched == [lighthouse_package.PACKAGE]
    assert lines == [f"fetching {lighthouse_package.PACKAGE}"]


def test_without_a_wheel_there_is_no_row_and_a_line_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object) -> None:
        raise ToolError("no wheel for this Python")

    monkeypatch.setattr(lighthouse_package, "run_uv", refuse)
    assert measure("agents-16", "torchft") == {}
    assert "no row of torchft" in (said := capsys.readouterr().out)
    assert "no wheel for this Python" in said
