"""Progress in a real notebook, whose cells run within an event loop."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from regroup.local.display import View, view_of_job
from regroup.training_client.progress_display import NotebookCell, in_notebook, page_of
from regroup_operator.api.status import ProgressStatus, TrainingJobStatus

SECONDS = 240
CELLS = (
    """
    import asyncio
    from regroup import AsyncJob, TrainingClient, TrainingJob, to_frame

    asyncio.get_running_loop()
    client = TrainingClient("local", directory="runs")

    def train(steps):
        import torch
        from torch import nn
        from regroup_trainer import Session

        session = Session(seed=0)
        model = session.prepare(nn.Linear(1, 1))
        session.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 64)[:, None])
        for (inputs,) in session.batches(data, steps=steps, global_batch_size=8):
            session.backward(((model(inputs) - 2 * inputs) ** 2).mean())
            session.step()
    """,
    """
    patient = {"timeoutMilliseconds": 60_000, "progressTimeoutSeconds": 500}
    job = client.train(
        train,
        func_args={"steps": 20},
        job=TrainingJob("line", {"failureDetection": patient}),
        workers=2,
    )
    job.wait()
    """,
    "print(job.code)",
    "print(await AsyncJob(job).wait(), end='')",
    """
    frame, weights = to_frame(job.metrics()), job.load_state_dict()
    print(len(frame) > 0, {name: tuple(weight.shape) for name, weight in weights.items()})
    """,
)


def outputs_of(notebook: Any, cell: int, kind: str) -> list[Any]:
    return [each for each in notebook.cells[cell].outputs if each.output_type == kind]


@pytest.mark.long
@pytest.mark.timeout(560)
@pytest.mark.usefixtures("warm_workers")
def test_a_notebook_trains_a_function_and_shows_how_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    make: Any = nbformat.v4  # it has no types
    notebook = make.new_notebook()
    notebook.cells = [make.new_code_cell(textwrap.dedent(text)) for text in CELLS]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()
    for cell in (1, 3):
        (shown,) = outputs_of(notebook, cell, "display_data")  # updated in place
        assert shown.data["text/plain"].startswith("Succeeded: ")
        assert "step 20/20" in shown.data["text/html"]
    texts = [outputs_of(notebook, cell, "stream")[0].text for cell in (2, 4)]
    assert texts[0] == "function train is sent as source: it is self-contained\n"
    assert texts[1] == "True {'weight': (1, 1), 'bias': (1,)}\n"


def test_outside_of_a_notebook_there_is_none() -> None:
    assert not in_notebook()


def test_what_others_wrote_is_text() -> None:
    view = View("Running", "<script>alert(1)</script> \x1b[31m& more", 0, 0, [("step", "<b>")])
    assert page_of(view) == (
        "<div>Running: &lt;script&gt;alert(1)&lt;/script&gt; &amp; more</div>"
        '<progress aria-label="steps" style="width: 30em"></progress><div>step &lt;b&gt;</div>'
    )


@pytest.mark.parametrize("updated", ["2026-11-26T12:34:56Z", "0001-01-01T00:00:00+14:00", None])
def test_a_status_says_when_its_step_was_made(updated: str | None) -> None:
    status = TrainingJobStatus(progress=ProgressStatus(step=7, updated_time=updated))
    made = datetime(2026, 11, 26, 12, 34, 56, tzinfo=UTC).astimezone()
    at = f"at={made:%H:%M:%S} " if updated and updated.startswith("2026") else ""
    assert f"[step=7 {at}workers=0" in view_of_job(status).line()


def test_a_cell_is_updated_in_place_now_and_then_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            shown.append(content["text/plain"])

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(content["text/plain"])
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    cell = NotebookCell()
    for step in range(1, 100):
        cell.show(TrainingJobStatus(phase="Running", progress=ProgressStatus(step=step)))
    cell.close()
    cell.show(TrainingJobStatus(phase="Failed"))
    assert len(shown) < 9
    assert "step=1 " in shown[0]
    assert "step=99 " in shown[-1]
