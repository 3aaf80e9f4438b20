"""The Python of the page about the client: types are checked, and what needs no cluster is run."""

from __future__ import annotations

import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.documented_commands import ROOT, blocks_of
from tests.support.page_terminal import typed
from tools.cache import cache_folder

PAGE = ROOT / "docs/tasks/python-client.md"
FIRST, INDEX, TYPED_JOB, WEIGHTS, ASYNC = (
    block.text for block in blocks_of(PAGE) if block.language == "python"
)
"""INDEX alone is not run: a local job installs nothing."""
LOCAL = {"TrainingClient()": 'TrainingClient("local")'}
LINE = """\
    x = torch.linspace(-1, 1, 64)[:, None]
    data = torch.utils.data.TensorDataset(x, 2 * x)
    session = Session(seed=0)
    model = session.prepare(torch.nn.Linear(1, 1))
    session.attach(torch.optim.SGD(model.parameters(), lr=lr))
    for inputs, targets in session.batches(data, steps=steps, global_batch_size=8):
        session.backward(((model(inputs) - targets) ** 2).mean())
        session.step()
    print(f"trained {steps} steps", flush=True)
"""
"""What the page leaves out of its function: it learns a line."""


def within(name: str, block: str) -> str:
    """A coroutine that runs a block, as a cell of a notebook may."""
    return f"async def {name}() -> None:\n{textwrap.indent(block, '    ')}"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_types_are_those_of_the_client(tmp_path: Path) -> None:
    """By mypy as `make check` calls it, whose cache it uses."""
    others = {"index": INDEX, "typed_job": TYPED_JOB, "weights": WEIGHTS, "with_loop": ASYNC}
    program = tmp_path / "page.py"
    program.write_text("\n\n".join([FIRST, *(within(*other) for other in others.items())]))
    cache = str(cache_folder() / "mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", cache, str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("warm_workers")
def test_it_trains_on_this_machine_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the backend, with a function that does something, a package that is here, and fewer
    workers and steps. A local client knows its own jobs alone.
    """
    first = {**LOCAL, "    ...\n": LINE, "(2, 4)": "(1, 2)", "einops": "pydantic"}
    steps = {'"steps": 1000': '"steps": 20'}
    parts = [
        typed(FIRST, {**first, **steps, "steps: int = 1000": "steps: int = 20"}),
        typed(TYPED_JOB, {"workers=4": "workers=2"}),
        'client.job("mine").wait()',
        typed(WEIGHTS, {"TrainingClient()": "client"}),
        "import asyncio",
        within("with_loop", typed(ASYNC, {**LOCAL, **steps})),
        "asyncio.run(with_loop())",
    ]
    program = tmp_path / "page.py"
    program.write_text("\n".join(parts))
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    shapes = {name: tuple(weight.shape) for name, weight in names["weights"].items()}
    assert shapes == {"weight": (1, 1), "bias": (1,)}
    assert "rank 0: trained 20 steps" in capsys.readouterr().out
    assert [path.name.partition("-")[0] for path in sorted(Path("regroup-runs").iterdir())] == [
        "mine", "train", "train",
    ]  # fmt: skip
