"""The user's own script, read off a pod template."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from regroup_operator.api import accelerate_flags, torchrun_flags
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.spec_reader import InvalidSpecError, parse_spec
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
        ({"command": ["torchrun", "--", "a.py", "-v"]}, "python", ("a.py", "-v")),
        ({"command": ["my scripts/a.py", "-v"]}, "python", ("my scripts/a.py", "-v")),
        ({"command": ["python", "-ummine.train", "-v"]}, "python", ("-m", "mine.train", "-v")),
        ({"command": ["python", "-qum", "mine", "-v"]}, "python", ("-m", "mine", "-v")),
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
        (["torchrun", "train.sh"], "'train.sh' names no Python script"),
        (["torchrun", "--foo", "train.py"], "--foo: torchrun has no such flag"),
        (["torchrun", "--n=2", "a.py"], "--n: torchrun has no such flag: it may be --nproc-per-no"),
        (["torchrun", "--nproc-per-node=$(N)", "a.py"], "--nproc-per-node=$(N): give a number"),
        (["torchrun", "--nnodes=a", "a.py"], "--nnodes=a: give a number from 1 to 100000"),
        (["torchrun", "--max-restarts=-1", "a.py"], "--max-restarts=-1: give a number"),
        (["torchrun", "--standalone=1", "a.py"], "--standalone takes no value"),
        (["torchrun", "--role"], "--role: its value is missing"),
        (["torchrun", "-x", "a.py"], "-x: torchrun has no such flag"),
        (
            [*["torchrun", "--nnodes=2", "--rdzv-id=7", "--rdzv-backend", "c10d", "a.py"]],
            "--rdzv-id=7: the job brings its own rendezvous: write [torchrun, --nnodes=2, --rdzv-b",
        ),
        (["torchrun", "--rdzv-backend=etcd", "a.py"], "--rdzv-backend=etcd: the job brings its"),
        (["python", "-O", "train.py"], "-O of Python is not supported"),
        (["python", "-c", "print(1)"], "-c of Python names no file that each rank could"),
        (["python", "-"], "- of Python names no file that each rank could run"),
        (
            ["python", "-m", "deepspeed.launcher.runner", "--num_gpus=2", "a.py", "-v"],
            "'deepspeed' starts ranks itself, which spec.launcher does here: write [python, a.p",
        ),
        (["python", "-um", "horovod.runner", "-np", "2", "python", "a.py"], "write [python, a.py]"),
        (["bash", "-c", "echo"], "'bash -c echo' is a line for a shell: write the command as a li"),
        (["bash", "-c", "cd a && python b.py"], "and other steps in an init container"),
        (["/bin/sh", "-c", "A=1 python b.py"], "variables in env"),
        (
            ["sh", "-c", "torchrun --nproc-per-node 2 a.py"],
            "write [torchrun, --nproc-per",
        ),
        (
            ["deepspeed", "--num_gpus=2", "a.py", "-v"],
            "starts ranks itself, which spec",
        ),
        (["mpirun", "-n", "2", "python", "a.py", "-v"], "write [python, a.py, -v]"),
        (["mpirun", "-np", "2", "python", "-m", "pkg"], "write [python, -m, pkg]"),
        (["torchrun --nproc-per-node=2 a.py"], "in one word: write [torchrun, --nproc-per-node=2,"),
        ("python a.py --n 2", "got 'python a.py --n 2': write [python, a.py, --n, 2]"),
        (["uv", "run", "a.py", "-v"], "write [python, a.py, -v], with the path of that environ"),
        (["uv", "run", "torchrun", "--role=x", "a.py"], "write [torchrun, --role=x, a.py], with"),
        (["poetry", "run", "python", "a.py"], "'poetry' starts another program, and here the comm"),
        (["conda", "run", "-n", "e", "python", "a.py"], "write [python, a.py], with the path of"),
        (["nohup", "python", "a.py"], "write [python, a.py]"),
        (["timeout", "3600", "torchrun", "a.py"], "write [torchrun, a.py]"),
        (["numactl", "--cpunodebind=0", "python", "-m", "pkg"], "write [python, -m, pkg]"),
        (["tini", "--", "python", "a.py"], "'tini' starts another program"),
        (["fabric", "run", "--accelerator=cuda", "a.py"], "'fabric' starts ranks itself, which sp"),
        (["bash", "-lc", "python a.py --n 1"], "write [python, a.py, --n, 1]"),
        (["sh", "-c", "exec torchrun --role=x a.py"], "write [torchrun, --role=x, a.py]"),
        (["sh", "-c", "cd /app && A=1 python a.py"], "write [python, a.py], variables in env, and"),
        (["sh", "-c", "python a.py > log"], "write the command as a list, such as [python, train"),
        (["python", "folder/"], "for a folder: [python, folder/__main__.py]"),
        (["bash", "-c", "accelerate launch --cpu a.py"], "write [accelerate, launch, --cpu, a.py]"),
        (
            ["torchrun", "--nnodes=" + "9" * 5000, "a.py"],
            "9...: give a number from 1 to 100000, or",
        ),
        (["torchrun", "--nnodes=2:0", "a.py"], "--nnodes=2:0: give a number from 1 to 100000"),
        (["torchrun", "--nnodes=", "a.py"], "--nnodes=: give a number from 1 to 100000"),
        (
            ["torchrun", "--role", "--nproc-per-node", "2", "a.py"],
            "--role: its value is missing, since --nproc-per-node looks like a flag: write --role=",
        ),
        (["torchrun", "-t", "-r3", "a.py"], "-t: its value is missing, since -r3 looks like a fl"),
        (["torchrun", "--max-restarts", "-1", "a.py"], "--max-restarts=-1: give a number"),
        (["torchrun", "-mfoo", "a.py"], "-mfoo: torchrun has no such flag as -f: put a blank"),
        (["torchrun", "-", "a.py"], "-: torchrun has no such flag"),
        (["torchrun", "--tee=x", "a.py"], "--tee=x: give 0 to 3, or such a number for each local"),
        (["torchrun", "--monitor-interval=a", "a.py"], "--monitor-interval=a: give seconds"),
        (["torchrun", "--shutdown-timeout=1.5", "a.py"], "--shutdown-timeout=1.5: give whole seco"),
        (["torchrun", "--numa-binding=x", "a.py"], "--numa-binding=x: give one of node, socket"),
        (["torchrun", "--signals-to-handle=9", "a.py"], "--signals-to-handle=9: give signals"),
        (
            ["torchrun", "--local-ranks-filter=a", "a.py"],
            "--local-ranks-filter=a: give local ranks",
        ),
        (
            [*["python3", "-m", "torch.distributed.launch", "--use_env", "--nnodes=1", "a.py"]],
            "read LOCAL_RANK of the environment, and write [torchrun, --nnodes=1, a.py]",
        ),
        (["python", "-m", ""], "-m needs the name of a module, and '' is none: write [python, -m"),
        (["python", "-um"], "-m needs the name of a module, and it is missing"),
        (["python", "-m", "-m"], "-m needs the name of a module, and '-m' is none"),
        (["python\N{ARABIC-INDIC DIGIT THREE}", "a.py"], "starts another program, and here"),
        (["python", "a.py", "a\0b"], r"command[2]: 'a\x00b' holds a NUL character: remove it"),
        (["python", "a.py", "\ud800"], r"command[2]: '\ud800' holds half of a character"),
        (["torchrun", "--\ud800", "a.py"], "holds half of a character"),
        (["env"] * 5000 + ["a.py"], "is a line for a shell: write [python, a.py]"),
        (["x" * 100_000], "names no Python script"),
        (["torchrun", *(f"--rdzv-id={n}" for n in range(5000)), "a.py"], "rdzv-id=49, ...: the j"),
        (False, "must be a list of strings, got False"),
        (0, "must be a list of strings, got 0"),
        ([5], "must be a list of strings, got 5 at [0]: write it in quotation marks"),
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
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


def test_the_command_line_of_torchrun_stands_before_the_script() -> None:
    command = "/opt/bin/torchrun --nproc_per_node 2 --nnodes=1:4 --role=a -t3 -m mine.train -v"
    script = user_script(template(command=command.split()))
    assert script is not None
    assert (script.interpreter, script.arguments) == ("/opt/bin/python", ("-m", "mine.train", "-v"))
    flags = script.flags
    assert (flags.ranks, flags.nodes, flags.role, flags.stock) == (2, (1, 4), "a", ("-t3",))
    assert script.variables == {"ROLE_NAME": "a"}


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--standalone", "--nproc-per-node=gpu", "train.py"],
        ["python3", "-m", "torch.distributed.run", "--nnodes=1", "--nproc=auto", "train.py"],
        ["torchrun", "--rdzv-backend=c10d", "--start-method", "spawn", "--run-path", "train.py"],
        ["python", "-u", "train.py"],
        ["python", "-uq", "-mtorchrun", "train.py"],
        ["python", "-qum", "torchrun", "--nnodes", "1:1", "train.py"],
    ],
)
def test_flags_that_ask_for_what_is_so_anyway_are_applied(command: list[str]) -> None:
    script = user_script(template(command=command))
    assert script is not None
    assert script.arguments == ("train.py",)
    assert script.flags.ranks in (None, "auto")
    assert script.flags.nodes in (None, (1, 1))


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


def of_torchrun(*flags: str, **spec: Any) -> TrainingJobSpec:
    container = {"name": "trainer", "command": ["torchrun", *flags, "train.py"]}
    return TrainingJobSpec.model_validate(
        {"template": {"spec": {"containers": [container]}}, **spec}
    )


def test_flags_of_torchrun_count_where_the_spec_has_its_default() -> None:
    spec = of_torchrun("--nproc-per-node=2", "--max-restarts=3", "--nnodes=1")
    assert (spec.nproc_per_node, spec.restart_policy.max_restarts) == (2, 3)
    same = of_torchrun("--nproc-per-node=2", nprocPerNode=2)
    assert same.nproc_per_node == 2
    assert of_torchrun("-t3", launcher="torchrun").launcher == "torchrun"


@pytest.mark.parametrize(
    ("flag", "spec", "words"),
    [
        ("--nproc-per-node=2", {"nprocPerNode": 4}, "nprocPerNode is 4, and --nproc-per-node in"),
        ("--max-restarts=2", {"restartPolicy": {"maxRestarts": 4}}, "restartPolicy.maxRestarts is"),
        ("--nnodes=2", {}, "--nnodes=2:2 (--standalone is 1:1), and the job has 1 to 1 workers"),
        ("-t3", {}, "-t3: only launcher torchrun supports this"),
    ],
)
def test_flags_of_torchrun_that_contradict_the_spec_are_refused(
    flag: str, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        of_torchrun(flag, **spec)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("hello", "spec.template.spec: must be an object"),
        ({"containers": 5}, "spec.template.spec.containers: must be a list"),
        (0, "spec.template.spec: must be an object, got 0"),
        ({"containers": False}, "spec.template.spec.containers: must be a list, got False"),
        (
            {"containers": [{"name": "trainer", "command": ["python", "a.py"], "env": 5}]},
            r"spec.template.spec.containers\[trainer\].env: must be a list",
        ),
        (
            {"containers": [{"name": "trainer", "command": ["python", "a.py"], "args": ""}]},
            r"containers\[trainer\].args: must be a list of strings, got ''",
        ),
        (
            {"containers": [{"name": "trainer", "resources": 5}]},
            r"containers\[trainer\].resources: must be an object, got 5",
        ),
        (
            {"containers": [{"name": "trainer", "resources": {"limits": [1]}}]},
            r"containers\[trainer\].resources.limits: must be an object, got \[1\]",
        ),
        (
            {"containers": [{"name": "trainer"}, {"name": "side"}, {"name": "trainer"}]},
            "spec.template.spec.containers: 2 are named trainer: give the others names of their",
        ),
    ],
)
def test_a_template_of_another_shape_is_refused_by_the_name_of_the_field(
    spec: Any, field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        user_script({"spec": spec})


def test_an_entry_of_env_without_a_name_or_value_is_none() -> None:
    env = [{"value": "x"}, {"name": None, "value": None}, {"name": "A", "value": "1"}]
    container = {"name": "trainer", "command": ["python", "a.py"], "env": env}
    script = user_script({"spec": {"containers": [container]}})
    assert script is not None
    assert script.environment == {"A": "1"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "A", "value": "a\0b"}, r"env[1].value: 'a\x00b' holds a NUL character"),
        ({"name": "A", "value": "\udfff"}, r"env[1].value: '\udfff' holds half of a character"),
        ({"name": "A\0", "value": "a"}, "env[1].name: 'A\\x00' holds a NUL character"),
        ({"name": "A=B", "value": "a"}, "env[1].name: 'A=B' holds '=': write what follows it in"),
        ({"name": "A", "value": [1]}, "env[1].value: must be a string, got [1]"),
    ],
)
def test_what_no_environment_can_hold_is_refused_by_the_name_of_the_field(
    entry: dict[str, Any], words: str
) -> None:
    env = [{"name": "B", "value": "1"}, entry]
    with pytest.raises(ValueError, match=re.escape(words)):
        user_script(template(command=["python", "a.py"], env=env))


WORDS = st.one_of(
    st.sampled_from(
        ["python", "torchrun", "accelerate", "launch", "-m", "-um", "sh", "-c", "env", "a.py", "--"]
    ),
    st.sampled_from([f"--{name}" for name in {**accelerate_flags._FLAGS, **torchrun_flags._FLAGS}]),
    st.text(st.characters(codec=None), max_size=8),
    st.text("-=:,mtqu019٣\0\ud800 ", max_size=6),
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = ("command", "args", "env", "resources")


@settings(max_examples=150, deadline=None)
@given(
    container=st.dictionaries(st.sampled_from(KEYS), ODD | st.lists(WORDS, max_size=8)),
    launcher=st.sampled_from(["regroup", "torchrun"]),
)
def test_no_command_ends_in_another_error(container: dict[str, Any], launcher: str) -> None:
    try:
        spec = parse_spec({"template": template(**container), "launcher": launcher})
    except InvalidSpecError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 10_000
    else:
        script = user_script(spec.template)
        for word in (*script.arguments, *script.environment.values()) if script else ():
            os.fsencode(word)
            assert "\0" not in word
