"""The command `kubectl trainingjob` without a cluster: help, wrong command lines, completion."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from regroup.cli import kubectl_completion
from regroup.cli.command_line import main
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.cli.request_verbs import checkpoint
from regroup.cli.show_verbs import live
from regroup.kubernetes.cluster_errors import unreachable
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.kube_api import ROOT
from tests.support.specs import VALID_JOB

HEAVY = {"kubernetes", "pydantic", "yaml", "rich", "aiohttp", "asyncio", "urllib3"}
PAGE = (ROOT / "docs/tasks/command-line.md").read_text()


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner(env={"KUBECONFIG": "/nowhere/config"}).invoke(
        trainingjob, arguments, input=stdin
    )


def test_help_imports_nothing_that_takes_long() -> None:
    program = f"""
import sys
sys.argv = ["kubectl-trainingjob", "--help"]
from regroup.cli.kubectl_trainingjob import main
try:
    main()
finally:
    print(sorted({HEAVY} & set(sys.modules)), len(sys.modules), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "why " in done.stdout
    loaded, _, count = done.stderr.strip().rpartition(" ")
    assert loaded == "[]"
    assert int(count) < 350


@pytest.mark.parametrize(
    "name", [*trainingjob.commands, *(f"checkpoint {verb}" for verb in checkpoint.commands)]
)
def test_help_has_examples_and_fits_eighty_columns(name: str) -> None:
    shown = run(*name.split(), "--help").output
    assert f"kubectl trainingjob {name}" in shown.partition("Examples:")[2]
    assert max(map(len, shown.splitlines())) <= 80


def examples(command: click.Command) -> list[list[str]]:
    """The words of each example behind `kubectl trainingjob`."""
    text = "\n".join(getattr(command, "examples", ())).replace("\\\n", " ")
    return [shlex.split(line)[2:] for line in text.splitlines()]


@pytest.mark.parametrize("name", sorted(trainingjob.commands.keys() - {"completion"}))
def test_every_example_is_a_command_line_that_is_taken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(VALID_JOB)
    monkeypatch.chdir(tmp_path)
    for given, *words in examples(trainingjob.commands[name]):
        assert given == name
        trainingjob.commands[name].make_context(name, words)


def test_every_example_of_a_verb_of_a_verb_is_taken() -> None:
    for name, command in checkpoint.commands.items():
        for _, given, *words in examples(command):
            assert given == name
            command.make_context(given, words)


def test_the_summaries_of_all_verbs_are_whole() -> None:
    assert "..." not in run("--help").output.partition("Commands:")[2]


def test_the_page_lists_every_verb() -> None:
    section = PAGE.partition("| verb | what it does |")[2].partition("Each verb has")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w -]+)`", row)} == (
        trainingjob.commands.keys() - {"checkpoint"}
        | {f"checkpoint {verb}" for verb in checkpoint.commands}
    )


def test_the_page_says_how_a_killed_rank_differs_from_one_without_memory() -> None:
    words = " ".join(PAGE.split())
    killed = {"generation": GenerationNumber(1, 1), "rank": 1, "exit_code": 137, "signal": 9}
    for cause in ("signal", "oom"):
        assert RankExit.model_validate({**killed, "cause": cause}).how in words


def test_the_same_verbs_are_under_regroup() -> None:
    assert main.commands["trainingjob"] is trainingjob


def test_every_verb_that_has_a_result_has_an_output_for_programs() -> None:
    """The page in the browser and a script for a shell are no results."""
    without = {
        name
        for name, command in {**trainingjob.commands, **checkpoint.commands}.items()
        if not any(parameter.name == "output" for parameter in command.params)
    }
    assert without == {"ui", "checkpoint", "completion"}


def test_wide_is_taken_where_the_help_says_what_it_adds_alone() -> None:
    taken = {}
    for name, command in {**trainingjob.commands, **checkpoint.commands}.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name == "output":
                assert isinstance(parameter.type, click.Choice)
                taken[name] = "wide" in parameter.type.choices
                assert ("; wide adds " in (parameter.help or "")) == taken[name], name
    assert {name for name, wide in taken.items() if wide} == {
        "get", "status", "describe", "logs", "timeline", "top", "debug", "bundle", "list",
    }  # fmt: skip


def test_without_the_extra_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "regroup_trainer.protocol.extras.importlib.util.find_spec", lambda name: None
    )
    done = run("get")
    assert done.exit_code == 1
    assert done.output == (
        "Error: kubernetes cannot be found: type pip install '.[kubernetes]' in a clone of "
        "Regroup\n"
    )


def test_without_a_kubeconfig_it_says_where_it_looked() -> None:
    done = run("get")
    assert done.exit_code == 1
    assert "Error: kubeconfig /nowhere/config: " in done.output
    assert "--kubeconfig" in done.output


def test_a_name_may_be_written_as_kubectl_prints_it() -> None:
    done = run("status", "trainingjob.regroup.dev/gpt")
    assert "kubeconfig" in done.output
    assert run("status", "gpt/../x").exit_code == 2
    assert "is no name of a TrainingJob" in run("status", "GPT").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("submit",), "give -f FILE, or a NAME"),
        (("submit", "gpt"), "say what to train"),
        (("submit", "gpt", "-f", "x.yaml"), "give -f or --name"),
        (("submit", "gpt", "--model", "gpt:1m", "--min-replicas", "0"), "min-replicas"),
        (("get", "gpt", "-A"), "give names, or -A and -l"),
        (("status", "gpt", "-w", "-o", "json"), "leave out -o json"),
        (("status", "gpt", "-w", "--timeout", "soon"), "write 30s, 5m or 1h"),
        (("logs", "gpt", "-o", "yaml"), "'yaml' is not one of 'wide', 'json', 'name'"),
        (("doctor", "-o", "name"), "'name' is not one of 'json', 'yaml'"),
        (("why", "gpt", "-o", "wide"), "'wide' is not one of 'json', 'yaml', 'name'"),
        (("logs", "gpt", "-f", "-o", "name"), "-f prints lines: leave out -o name"),
        (("submit", "gpt", "--model", "gpt:1m", "--wait", "-o", "json"), "leave out -o json"),
        (("scale", "gpt"), "--replicas"),
        (("restart", "gpt"), "--from-checkpoint"),
        (("restart", "gpt", "--from-checkpoint", "last"), "give a step"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_an_unexpected_error_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("something odd")

    monkeypatch.setattr("regroup.cli.cluster_options._require_client", broken)
    done = run("get")
    assert done.exit_code == 1
    assert "Error: unexpected RuntimeError: something odd: please report it" in done.output
    assert run("get").exception.__class__ is SystemExit


def test_no_image_has_the_client_of_kubernetes() -> None:
    files = [file for file in (ROOT / "requirements").glob("*.txt") if file.stem != "dev"]
    assert len(files) >= 4
    assert not [file for file in files if "kubernetes==" in file.read_text()]
    assert "\nkubernetes==" in (ROOT / "requirements/dev.txt").read_text()


def test_top_goes_on_through_an_outage_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[list[str] | BaseException] = [
        ["first"],
        unreachable("https://x", "refused"),
        ["second"],
        KeyboardInterrupt(),
    ]

    def look() -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    live(look, 0.0)
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "second" in shown


# --- files ----------------------------------------------------------------------------------------


def test_validate_needs_no_cluster(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(VALID_JOB)
    assert run("validate", "-f", str(file)).output == f"{file}: TrainingJob gpt is valid\n"
    file.write_text(VALID_JOB.replace("steps: 500", "steps: -1"))
    done = run("validate", "-f", str(file))
    assert done.exit_code == 1
    assert "job.yaml:11: spec.trainer.training.steps" in done.output


def test_what_validate_finds_is_an_object_for_a_program(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(VALID_JOB)
    bad.write_text(VALID_JOB.replace("steps: 500", "steps: -1"))
    files = ("-f", str(good), "-f", str(bad))
    done = run("validate", *files, "-o", "json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["valid"] is False
    assert report["jobs"] == [{"file": str(good), "name": "gpt"}]
    (problem,) = report["problems"]
    assert problem.pop("message").endswith("got -1")
    assert problem == {"file": str(bad), "line": 11, "field": "spec.trainer.training.steps"}
    whole = run("validate", "-f", str(good), "-o", "yaml")
    assert (whole.exit_code, yaml.safe_load(whole.stdout)["valid"]) == (0, True)
    named = run("validate", "-f", str(good), "-o", "name")
    assert named.output == "trainingjob.regroup.dev/gpt\n"


def test_a_file_that_is_no_yaml_is_a_problem_like_another(tmp_path: Path) -> None:
    """It does not hide what is wrong with the files behind it."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("spec: {replicas: [\n")
    second.write_text(VALID_JOB.replace("steps: 500", "steps: -1"))
    files = ("validate", "-f", str(first), "-f", str(second))
    assert "second.yaml:11: spec.trainer.training.steps" in run(*files).output
    problems = json.loads(run(*files, "-o", "json").stdout)["problems"]
    assert [(one["line"], one["field"]) for one in problems] == [
        (2, ""),
        (11, "spec.trainer.training.steps"),
    ]


def test_submit_checks_a_file_before_it_connects(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(VALID_JOB.replace("gpt, preset", "gtp, preset"))
    done = run("submit", "-f", str(file))
    assert done.exit_code == 1
    assert "job.yaml:9: spec.trainer.model.name" in done.output
    assert "kubeconfig" not in done.output


def test_submit_checks_the_flags_before_it_connects() -> None:
    done = run("submit", "gpt", "--model", "gpt:1m", "--replicas", "3", "--min-replicas", "2")
    assert done.exit_code == 1
    assert "the flags describe no valid job: spec" in done.output
    assert "storage" in done.output


def test_a_file_that_waits_for_one_job_holds_one(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(VALID_JOB + "---\n" + VALID_JOB)
    done = run("submit", "-f", str(file), "--wait")
    assert done.exit_code == 2
    assert "holds 2 jobs" in done.output


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0, done.output
    assert "_KUBECTL_TRAININGJOB_COMPLETE" in done.output
    assert "kubectl-trainingjob" in done.output


def completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-trainingjob", *words])
    kubectl_completion.main()
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


def test_kubectl_completes_verbs_flags_and_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(capsys, monkeypatch, "s") == [
        "submit", "status", "scale", "suspend", "simulate-failure", ":4",
    ]  # fmt: skip
    assert completed(capsys, monkeypatch, "get", "--out") == ["--output", ":4"]
    assert completed(capsys, monkeypatch, "get", "-o", "y") == ["yaml", ":4"]
    assert completed(capsys, monkeypatch, "validate", "-f", "") == [":0"]


def test_names_complete_to_nothing_without_a_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    assert completed(capsys, monkeypatch, "why", "g") == [":4"]


def test_every_option_has_a_help_text() -> None:
    without_help = [
        f"{name} {parameter.name}"
        for name, command in trainingjob.commands.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert not without_help
