"""Which test executes which command of the pages: `python -m tests.support.command_executions`
prints each of them.

A file of EXECUTORS executes each command that it hands to a terminal. A command of kubectl that
none of them types is typed on a cluster, in the order in which pages come. What nobody can execute,
or what continuous integration runs by itself, is in NOT_TYPED with the reason.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tests.support.documented_commands import ROOT, Command, commands
from tests.support.typed_strings import typed_strings

EXECUTORS = {
    "tests/client/cli/test_documented_commands_here.py": "on this machine",
    "tests/client/local/test_start_pages.py": "on this machine",
    "tests/client/local/test_documented_runs.py": "on this machine",
    "tests/client/cli/test_installed_wheel.py": "on this machine",
    "tests/demo/test_make_try.py": "on this machine",
    "tests/client/cli/test_documented_commands_apiserver.py": "at an API server",
    "tests/chart/test_documented_helm_apiserver.py": "at an API server",
    "tests/chart/test_upgrade_apiserver.py": "at an API server",
    "tests/e2e/test_documented_commands_cluster.py": "on a cluster",
    "tests/e2e/test_former_release_cluster.py": "on a cluster",
    "demo/walkthrough/documented.py": "by the walk-through",
}
"""File -> where it executes commands."""
_BENCHMARK = "It takes minutes to hours: tests/bench runs the script with fewer and smaller cases."
_CLONE = "Tests run in a clone: tests/demo/test_make_try.py makes a fresh one, of itself."
CLUSTER = "tests/e2e/test_documented_commands_cluster.py"
NOT_TYPED = {
    "make venv": "Continuous integration runs it, since `make check` begins with it.",
    "make test": "Continuous integration runs it.",
    "make image": "Continuous integration runs it, since `make test` begins with it.",
    "make demo": (
        "It takes minutes on a cluster of its own: tests/e2e/test_losses.py cuts the same power, "
        "tests/demo has its choice of a cluster, its checks and its picture."
    ),
    "kubectl debug node/NODE -it --image=busybox -- chroot /host dmesg | grep -i xid": (
        "It needs an image from a registry, and a node that runs it as root of the host."
    ),
    "kubectl trainingjob simulate-failure gpt-demo --rank 1 --yes": (
        "`make faults` types it at a cluster and writes what it saw below it."
    ),
    "git clone https://github.com/regroup-dev/regroup": _CLONE,
    "make docs": "tests/test_site.py builds the same site.",
    "make dashboards": "tests/demo/test_picture.py draws pictures of the same recorded run.",
    "make bench NAME=recovery": _BENCHMARK,
    "make bench NAME=elastic_loss": _BENCHMARK,
    "make bench NAME=data_resume": _BENCHMARK,
    "make soak SEED=7 FAULTS=100": (
        "It takes an hour on a cluster of its own: tests/soak/test_soak.py injects twelve faults."
    ),
    "make fuzz": (
        "It takes minutes: tests/operator/controller/test_fuzz_apiserver.py draws fewer jobs."
    ),
    "make faults": (
        "It takes minutes on a cluster of its own, and writes a page: "
        "tests/demo/test_ten_faults.py has its verdicts."
    ),
    "make alerts": (
        "It takes minutes on a cluster of its own, and writes a page: "
        "tests/demo/test_caused_alerts.py has its causes."
    ),
    "pip install '.[data]'": "`make venv` installs these packages, with which the tests run.",
    "pip install torchft-nightly nvidia-resiliency-ext": (
        "They are packages of others, which one benchmark compares with where they are installed."
    ),
}
"""Command -> why no test types it."""


class Execution(NamedTuple):
    """Where a command is executed."""

    where: str
    file: str


def executions(text: str) -> list[Execution]:
    """Where a command is executed. Empty: nowhere."""
    found = [Execution(where, file) for file, where in EXECUTORS.items() if text in _typed(file)]
    if text in commands_of_cluster():
        found.append(Execution(EXECUTORS[CLUSTER], CLUSTER))
    return list(dict.fromkeys(found))


@cache
def commands_of_cluster() -> tuple[str, ...]:
    """Commands of kubectl that no other test types, each once."""
    tests = [file for file in EXECUTORS if file.startswith("tests/")]
    elsewhere = set[str]().union(*map(_typed, tests)) | NOT_TYPED.keys()
    found = dict.fromkeys(command.text for command in commands("kubectl"))
    return tuple(text for text in found if text not in elsewhere)


@cache
def _typed(file: str) -> frozenset[str]:
    return typed_strings((ROOT / file).read_text())


def described(command: Command) -> str:
    """A line for a command: where it stands, and who executes it."""
    found = [f"{one.where} ({one.file})" for one in executions(command.text)]
    how = "; ".join(found) or f"not typed: {NOT_TYPED.get(command.text, 'by nobody')}"
    return f"{command}\n    {how}"


if __name__ == "__main__":
    print("\n".join(map(described, commands())))
