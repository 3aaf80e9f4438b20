"""A program run by `execute` finds what `python` would give it: as a file, and as a module."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXECUTE = (
    "import sys; from regroup_trainer.system import command_line as c; "
    "code = c.execute(sys.argv[1:]); c.wait_for_threads(); c.end(); sys.exit(code)"
)
MAIN = """
import atexit, pickle, sys, threading
from .neighbour import NAME
from mine.neighbour import NAME as AGAIN
from mine import neighbour

class Saved: pass

def late(when):
    try:
        print(when, type(pickle.loads(pickle.dumps(Saved()))).__name__, sys.argv)
    except Exception as error:
        print(when, error)

print(NAME, AGAIN, neighbour.__name__, sys.argv, sys.path[0])
print(__name__, __package__, __file__, __spec__.name, __doc__, type(__loader__).__name__)
print(sys.modules["__main__"].Saved is Saved)
atexit.register(late, "at exit:")

def after() -> None:
    last_line.wait()
    late("a thread:")

last_line = threading.Event()
threading.Thread(target=after).start()
threading._register_atexit(last_line.set)
sys.exit(3)
"""
FILE = "import sys\nprint(__name__, __package__, __spec__, sys.argv, sys.path[0])\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "neighbour.py").write_text("NAME = 'of mine'\n")
    for name in ("__main__", "train"):
        (package / f"{name}.py").write_text(MAIN)
    (package / "alone.py").write_text("from .neighbour import NAME\n")
    (tmp_path / "file.py").write_text(FILE)
    return tmp_path


def run(folder: Path, *command: str) -> tuple[int, str, str]:
    """Exit code, output, and the last line of the error output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "mine", "--epochs", "5"),
        ("-m", "mine.train"),
        ("file.py", "--epochs", "5"),
        ("mine/alone.py",),
    ],
    ids=" ".join,
)
def test_a_program_finds_what_python_would_give_it(folder: Path, command: tuple[str, ...]) -> None:
    assert run(folder, "-c", EXECUTE, *command) == run(folder, *command)


def test_runpy_still_has_the_private_function_that_finds_the_module_to_run() -> None:
    name, spec, code = runpy._get_module_details("tabnanny")  # type: ignore[attr-defined]
    assert (name, spec) == ("tabnanny", importlib.util.find_spec("tabnanny"))
    assert code == spec.loader.get_code("tabnanny")
    with pytest.raises(ImportError, match="No module named nowhere"):
        runpy._get_module_details("nowhere")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["nowhere", "mine.nowhere", "os.path.nowhere"])
def test_a_module_that_is_not_there_is_an_error_of_import(folder: Path, name: str) -> None:
    code, _, error = run(folder, "-c", EXECUTE, "-m", name)
    assert code == 1
    assert error.startswith(("ImportError: ", "ModuleNotFoundError: "))
    assert "nowhere" in error
