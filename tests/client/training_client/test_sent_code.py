"""What is sent of a function or script, and in which form."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regroup.training_client.client_errors import CodeError
from regroup.training_client.sent_code import (
    CODE_LIMIT,
    SentCode,
    code_of_function,
    code_of_script,
)

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "3.99"
GREETING = "hello"


def plain(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - it needs nothing of its module
        file.write("plain")


def greets(path: str, who: Any) -> None:
    Path(path).write_text(f"{GREETING} {who()}")


def run(code: SentCode, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a Python that has no packages."""
    code.write_to(folder)
    _, *words = code.command(str(folder))
    command = [sys.executable, "-I", "-S", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_self_contained_function_is_sent_as_source(tmp_path: Path) -> None:
    code = code_of_function(plain, {"path": str(tmp_path / "out")}, "train:1-py399", OTHER)
    assert (code.how, list(code.files)) == ("source", ["main.py"])
    assert code.explanation == "function plain is sent as source: it is self-contained"
    assert run(code, tmp_path / "code").returncode == 0
    assert (tmp_path / "out").read_text() == "plain"


def test_another_one_is_pickled_with_all_that_an_image_lacks(tmp_path: Path) -> None:
    """Module, arguments and cloudpickle itself are not where it runs."""
    arguments = {"path": str(tmp_path / "out"), "who": lambda: "world"}
    code = code_of_function(greets, arguments, None, None)
    assert code.how == "cloudpickle"
    assert code.explanation == (
        f"function greets is sent by cloudpickle for Python {HERE}, since it uses GREETING, Path "
        "of its module"
    )
    done = run(code, tmp_path / "code")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == "hello world"


async def waits() -> None:
    pass


def yields() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [waits, yields, functools.partial(waits)])
def test_a_function_whose_call_would_train_nothing_is_refused(function: Any) -> None:
    with pytest.raises(CodeError, match="does not run its body, since it is async or yields"):
        code_of_function(function, {}, None, None)


def test_a_pickled_function_needs_the_python_that_pickled_it(tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path), "who": str}
    with pytest.raises(CodeError, match=f"train:1 has Python {OTHER}.*use an image with Python"):
        code_of_function(greets, arguments, "train:1", OTHER)
    code = code_of_function(greets, arguments, None, None)
    (tmp_path / "code").mkdir()
    changed = SentCode(
        code.how, code.explanation, {**code.files, "python": OTHER.encode()}, code.program
    )
    done = run(changed, tmp_path / "code")
    assert done.returncode == 2
    assert f"pickled by Python {OTHER}, and this image has {HERE}: use an image" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "func_args: do not fit plain: missing a required argument: 'path'"),
        ({"path": "x", "y": 1}, "func_args: do not fit plain: got an unexpected keyword"),
        ({"path": sys._getframe()}, "cannot be pickled"),
    ],
)
def test_arguments_that_cannot_be_sent(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(CodeError, match=why):
        code_of_function(plain, arguments, None, None)


def test_a_script_is_sent_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    code = code_of_script(script, ["--lr", "0.1"])
    assert code.how == "script"
    assert run(code, tmp_path / "code").stdout == "['--lr', '0.1']\n"
    assert code.command("/x") == ["python", "/x/main.py", "--lr", "0.1"]


def test_scripts_that_cannot_be_sent(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match=r"no Python script: give a file that ends in \.py"):
        code_of_script(tmp_path / "train.sh", ())
    with pytest.raises(CodeError, match="No such file or directory"):
        code_of_script(tmp_path / "train.py", ())


def test_what_a_config_map_cannot_hold_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#" * CODE_LIMIT)
    code_of_script(script, ()).require_config_map()
    script.write_text("#" * (CODE_LIMIT + 1))
    with pytest.raises(CodeError, match=r"has 921,601 bytes.*at most 921,600 are possible: read"):
        code_of_script(script, ()).require_config_map()


def test_the_digest_is_of_all_that_is_sent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    first = code_of_script(script, ["a"])
    assert first.digest == code_of_script(script, ["a"]).digest
    assert first.digest != code_of_script(script, ["b"]).digest
    script.write_text("pass\n")
    assert first.digest != code_of_script(script, ["a"]).digest
