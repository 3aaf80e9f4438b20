"""The user's own script, read off a pod template."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.api.user_script import user_script


def template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


@pytest.mark.parametrize(
    ("container", "interpreter", "arguments"),
    [
        ({"command": ["python", "train.py"]}, "python", ("train.py",)),
        (
            {"command": ["python", "train.py"], "args": ["--epochs", "5"]},
            "python",
            ("train.py", "--epochs", "5"),
        ),
        ({"args": ["train.py", "--zero"]}, "python", ("train.py", "--zero")),
        (
            {"command": ["/opt/conda/bin/python3.12", "/code/a.py"]},
            "/opt/conda/bin/python3.12",
            ("/code/a.py",),
        ),
        ({"command": ["python3", "-m", "mine.train", "-v"]}, "python3", ("-m", "mine.train", "-v")),
    ],
)
def test_command_and_args_are_one_line(
    container: dict[str, Any], interpreter: str, arguments: tuple[str, ...]
) -> None:
    script = user_script(template(**container))
    assert script is not None
    assert (script.interpreter, script.arguments) == (interpreter, arguments)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["torchrun", "train.py"], "'torchrun' starts ranks itself"),
        (["python", "-u", "train.py"], "names no Python script"),
        (["bash", "-c", "echo"], "'bash -c echo' names no Python script"),
        (["python"], "'python alone' names no Python script"),
        ("python train.py", "must be a list of strings"),
    ],
)
def test_what_is_no_python_script_is_refused_by_the_name_of_the_field(
    command: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=r"containers\[trainer\]\.command") as caught:
        user_script(template(command=command))
    assert words in str(caught.value)


def test_without_a_command_there_is_no_script() -> None:
    assert user_script(None) is None
    assert user_script(template(env=[{"name": "A", "value": "1"}])) is None
    assert user_script({"spec": {"containers": [{"name": "sidecar", "command": ["sh"]}]}}) is None


def test_plain_values_of_the_environment_are_known() -> None:
    env = [
        {"name": "EPOCHS", "value": "2"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    script = user_script(template(command=["python", "a.py"], env=env))
    assert script is not None
    assert script.environment == {"EPOCHS": "2"}
