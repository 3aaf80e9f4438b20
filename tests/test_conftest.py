"""What a test that fails shows: its folders, those of the fixtures that it shares, the ends of the
logs in them, and its seed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import group

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
