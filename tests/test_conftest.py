"""What a test that fails shows: its folders, those of the fixtures that it shares, the ends of the
logs in them, and its seed. Which worker runs what, and what comes too late to run at all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis.internal.conjecture import engine

import tests.conftest as conftest
from demo.kubectl import CommandError
from tests.conftest import GroupScheduling, group
from tests.support.cluster_look import look_at
from tests.support.time_limit import REASON, turned

ROOT = Path(__file__).resolve().parent.parent
FAILING = """
import pytest
from hypothesis import given, strategies

@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    return str(tmp_path_factory.mktemp("logs"))

@pytest.fixture(scope="module")
def run(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return ["no folder"]

@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    tmp_path_factory.mktemp("broken")
    raise OSError("in the fixture")

def test_own(tmp_path):
    (tmp_path / "worker-0.log").write_text("\\n".join(map(str, range(100))))
    raise AssertionError

def test_own_too(tmp_path):
    raise AssertionError

def test_shared(run):
    raise AssertionError

def test_broken(broken):
    pass

def test_none():
    raise AssertionError

@pytest.mark.parametrize("seed", [7])
def test_seed(seed):
    raise AssertionError

@given(seed=strategies.just(11))
def test_drawn_seed(seed):
    raise AssertionError
"""

TALLIED = """
from tests.support.published_tally import record_converted, record_run

def test_convert(record_property):
    for why in ("", "", "spec.x: no", "spec.y: no", "spec.y: no"):
        record_converted(record_property, why)

def test_run(record_property):
    record_run(record_property, "on a cluster", "RayJob", "mnist")

def test_that_fails(record_property):
    record_run(record_property, "on a cluster", "RayJob", "other")
    raise AssertionError
"""
SEARCHING = """
import pytest
from hypothesis import given, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule

@pytest.fixture(autouse=True)
def limit(request):
    marker = request.node.get_closest_marker("timeout")
    print(f"{request.node.nodeid}: {marker.args[0] if marker else None}")

class Machine(RuleBasedStateMachine):
    @rule()
    def nothing(self):
        pass

TestMachine = Machine.TestCase

@given(strategies.just(1))
def test_property(one):
    pass

@pytest.mark.timeout(900)
@given(strategies.just(1))
def test_longer(one):
    pass

def test_plain():
    pass
"""
SHARED = """
import pytest

@pytest.fixture(scope="package")
def cluster():
    print("up")
    yield
    print("down")
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints about the tests of FAILING, with our hooks."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "test_it.py").write_text(FAILING)
    return run(folder, 1, "--tb=short")


def run(folder: Path, code: int, *more: str) -> str:
    """What pytest prints about the tests of a folder, with our hooks."""
    options = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "tests.conftest", *more]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--basetemp", str(folder / "made"), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def section(output: str, test: str, title: str) -> list[str]:
    """The lines of a section of a test's report."""
    (report,) = re.findall(
        rf"^_+ (?:ERROR at setup of )?{test} _+$(.*?)^[_=]+ ", output, re.M | re.S
    )
    found = re.search(rf"^-+ {title} -+$\n(.*?)(?:^-+ |\Z)", report, re.M | re.S)
    return found[1].split() if found else []


@pytest.mark.parametrize(
    ("test", "folders"),
    [
        ("test_own", ["test_own0"]),
        ("test_own_too", ["test_own_too0"]),
        ("test_shared", ["logs0", "run0"]),
        ("test_broken", ["broken0"]),
        ("test_none", []),
    ],
)
def test_a_failing_test_names_its_folders_and_those_that_it_shares(
    output: str, test: str, folders: list[str]
) -> None:
    assert [Path(line).name for line in section(output, test, "Files and logs")] == folders


def test_a_failing_test_shows_the_ends_of_its_logs(output: str) -> None:
    shown = section(output, "test_own", "The end of .*/worker-0.log")
    assert shown == list(map(str, range(80, 100)))


@pytest.mark.parametrize(
    ("test", "seed"), [(r"test_seed\[7\]", ["7"]), ("test_drawn_seed", ["11"]), ("test_none", [])]
)
def test_a_failing_test_names_its_seed(output: str, test: str, seed: list[str]) -> None:
    assert section(output, test, "Seed") == seed


def test_the_time_limit_of_a_search_leaves_hypothesis_the_time_to_shrink(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SEARCHING)
    output = run(tmp_path, 0, "-s", "-o", "timeout=60")
    limits = dict(re.findall(r"::(\w+): (\S+)$", output, re.M))
    assert limits == {
        "runTest": "360.0",
        "test_property": "360.0",
        "test_longer": "900",
        "test_plain": "None",
    }
    assert float(limits["runTest"]) - 60 >= engine.MAX_SHRINKING_SECONDS


def test_a_run_ends_with_what_became_of_published_jobs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TALLIED)
    output = run(tmp_path, 1, "--tb=no", "-n", "1")  # in another process than the one that prints
    found = re.search(r"^=+ jobs that other projects publish =+$\n(.*?)^=", output, re.M | re.S)
    assert found is not None, output
    assert found[1].splitlines() == [
        "5 converted: 2 validated, 3 refused",
        "  refused, 2 of them: spec.y: no",
        "  refused, 1 of them: spec.x: no",
        "1 run on a cluster, with a stand-in for the script (RayJob: 1)",
        "  mnist",
    ]


@pytest.mark.parametrize(("seconds", "late"), [(300, []), (-1, ["test_it.py::test_quick"])])
def test_what_begins_too_late_is_skipped_and_named(
    tmp_path: Path, seconds: int, late: list[str]
) -> None:
    (tmp_path / "test_it.py").write_text("def test_quick(): pass")
    end = ("--end-by", str(time.time() + seconds))
    output = run(tmp_path, 0, "-p", "tests.support.time_limit", *end)
    named = re.findall(rf"^=+ not run, because {REASON}: 1 =+$\n+(.+)$", output, re.M)
    assert named == late
    assert ("1 skipped" if late else "1 passed") in output


def test_each_commit_begins_with_another_file() -> None:
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{file}::{test}") for file in "abc" for test in "xy"
    ]
    orders = ["".join(item.nodeid[0] for item in turned(items, by)) for by in range(4)]
    assert orders == ["aabbcc", "bbccaa", "ccaabb", "aabbcc"]
    assert turned([], 1) == []


def test_a_folder_whose_tests_share_a_cluster_is_not_split() -> None:
    names = ("bench/a", "e2e/b", "e2e/c", "soak/d")
    items: list[Any] = [SimpleNamespace(nodeid=f"{name}::test") for name in names]
    orders = ["".join(item.nodeid[-7] for item in turned(items, by)) for by in range(4)]
    assert orders == ["abcd", "cbda", "dabc", "acbd"]


def test_a_run_without_published_jobs_says_nothing_of_them(output: str) -> None:
    assert "other projects" not in output


def test_a_failing_test_on_a_cluster_shows_what_can_be_had_of_it() -> None:
    def kubectl(*arguments: str, timeout: float) -> str:
        if "--previous" in arguments:
            raise CommandError("it was never restarted")
        return " ".join(arguments)

    shown = dict(look_at(kubectl, "team"))
    assert shown["Jobs"] == "get trainingjobs -n team -o yaml"
    assert "-n regroup-system" in shown["Operator"]
    assert shown["Operator before its restart"] == "it was never restarted"


def test_what_the_tests_of_a_folder_share_ends_with_the_last_of_them(tmp_path: Path) -> None:
    texts = {
        "e2e/conftest.py": SHARED,
        "e2e/test_one.py": "def test_one(cluster): pass",
        "e2e/test_two.py": "def test_two(cluster): pass",
        "other/test_three.py": "def test_three(): print('beside nothing')",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    lines = run(tmp_path, 0, "-s", "-q", "--import-mode=importlib").splitlines()
    printed = [word for line in lines for word in re.findall("up|down|beside nothing", line)]
    assert printed == ["up", "down", "beside nothing"]


@pytest.mark.parametrize(
    ("file", "shared"),
    [
        ("tests/e2e/test_losses.py", "nodes"),
        ("tests/devcluster/test_cluster.py", "nodes"),
        ("tests/operator/controller/test_key_apiserver.py", "an API server"),
        ("tests/demo/test_picture.py", "a Prometheus"),
        ("tests/devcluster/test_images.py", "tests/devcluster/test_images.py"),
    ],
)
def test_one_worker_runs_what_waits_for_the_same_programs(file: str, shared: str) -> None:
    assert group(f"{file}::test_it[a/b.py]") == shared


class Worker:
    """A worker of pytest-xdist: runs what it is sent, one test at a time."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.to_run: list[int] = []
        self.ran: list[str] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.to_run.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True


def play(count: int, tests: list[str]) -> list[list[str]]:
    """What each of so many workers runs, when all tests take equally long."""
    config = SimpleNamespace(getvalue=lambda name: [f"{count}*popen"], option=SimpleNamespace())
    config.option.loadscopereorder = False
    scheduling = GroupScheduling(config)
    workers = [Worker(f"gw{number}") for number in range(count)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    while any(worker.to_run for worker in workers):
        for worker in workers:
            if worker.to_run:
                done = worker.to_run.pop(0)
                worker.ran.append(tests[done])
                scheduling.mark_test_complete(worker, done)
    assert scheduling.tests_finished
    return [sorted({test.partition("::")[0] for test in worker.ran}) for worker in workers]


WAIT = ["tests/operator/test_a_apiserver.py", "tests/trainer/agent/test_agent.py"]
COMPUTE = [f"tests/trainer/step/test_{name}.py" for name in "abcd"]


def four_tests_of(files: list[str]) -> list[str]:
    return [f"{file}::test_{number}" for file in files for number in range(4)]


@pytest.mark.parametrize(
    ("workers", "files", "runs"),
    [
        (3, [*COMPUTE, *WAIT], [COMPUTE[::2], COMPUTE[1::2], WAIT]),
        (3, [*COMPUTE, WAIT[0]], [COMPUTE[::2], COMPUTE[1::2], WAIT[:1]]),
        (2, [*WAIT, *COMPUTE], [[WAIT[0], *COMPUTE[::2]], [WAIT[1], *COMPUTE[1::2]]]),
    ],
    ids=["beside", "the spare ends", "no spare"],
)
def test_a_spare_worker_runs_what_waits_and_ends_with_it(
    workers: int, files: list[str], runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "_workers_that_compute", lambda: 2)
    assert play(workers, four_tests_of(files)) == runs


def test_who_computes_runs_what_waits_when_nothing_else_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conftest, "_workers_that_compute", lambda: 2)
    more = ["tests/trainer/agent/test_b.py", "tests/trainer/agent/test_c.py"]
    first, second, spare = play(3, four_tests_of([COMPUTE[0], COMPUTE[1], *WAIT, *more]))
    assert spare[0] == WAIT[0]
    assert {*first, *second, *spare} == {*COMPUTE[:2], *WAIT, *more}
    assert len(spare) < 4
