"""Completion as shells do it: each loads the script that `completion` prints, and asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """#!/bin/sh
exec {python} -c 'from regroup.cli.kubectl_trainingjob import main; main()' "$@"
"""
BASH = """
source <(kubectl-trainingjob completion bash)
[[ $(complete -p kubectl-trainingjob) =~ '-F '([a-z_]+) ]]
COMP_WORDS=({words}) COMP_CWORD={last}
${{BASH_REMATCH[1]}} kubectl-trainingjob
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -d {folder}/dump
source <(kubectl-trainingjob completion zsh)
_describe() {{ print -rl -- ${{(P)3}} }}  # outside of its line editor zsh takes no candidates
compadd() {{ print -rl -- ${{(P)@[-1]}} }}
words=({words}) CURRENT=$(({last} + 1))
$_comps[kubectl-trainingjob]
"""
FISH = """
kubectl-trainingjob completion fish | source
complete --do-complete '{line}'
"""


@pytest.mark.parametrize(
    ("shell", "script"),
    [("bash", BASH), ("zsh", ZSH), ("fish", FISH)],
)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("sta",), ["status"]),
        (("checkpoint", "ver"), ["verify"]),
        (("get", "-o", "y"), ["yaml"]),
        (("get", "--all-n"), ["--all-namespaces"]),
    ],
)
def test_a_shell_completes_verbs_flags_and_values(
    shell: str, script: str, typed: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "kubectl-trainingjob"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    line = " ".join(("kubectl-trainingjob", *typed))
    asked = script.format(words=line, last=len(typed), line=line, folder=tmp_path)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", asked],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    candidates = [found.split("\t")[0].split(":")[0] for found in done.stdout.splitlines()]
    assert candidates == expected, done.stdout + done.stderr
