"""What is known of a job can be judged later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from soak import evidence, reference, results
from soak.__main__ import main
from soak.checker import judge
from soak.evidence import Hit, Kept, WholeSnapshot
from soak.pod_states import TAKEN, UNSEEN, PodLook
from soak.records import Stored
from tests.support.soak_job import FIRST, Written

LOG = [
    entry
    for number in range(1, 31)
    for entry in (
        {"entry": "fault", "number": number, "kind": "pod-deleted", "job": "e1-0-fsdp"},
        {"entry": "memory", "samples": [["operator", "regroup-0 7-7", number, 60 + number / 25]]},
    )
]
"""Of a run whose operator grew by 4 MB per 100 faults."""


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    """The folder of a seed, with one job and the undisturbed run."""
    folder = tmp_path / "seed-7"
    written = Written(folder / "e1-0-fsdp")
    written.folder.mkdir(parents=True)
    snapshot = WholeSnapshot(Stored(9, FIRST), (frozenset({"w0", "w1"}),))
    written.change(
        hits=(Hit(10.0, frozenset({1}), 3, frozenset({"w1"})),),
        kept=(Kept(9.4, 9.5, (snapshot,), (Stored(5, FIRST),)),),
        excused=((100.0, 110.0),),
        refusals=((90.0, 95.0),),
        looks=(PodLook(9.0, (TAKEN,), (TAKEN, UNSEEN)),),
    )
    found = written.written()
    evidence.keep(found, written.folder)
    reference.save(reference.kept_file(folder, "gpt"), found.reference)
    figures = results.metrics(3, (), {})
    part = {"seed": 7, "commit": "abc", "metrics": {**figures, "memory_growth_mb": 1.5}}
    results.write_part(folder.with_suffix(".json"), part)
    folder.with_suffix(".jsonl").write_text("".join(json.dumps(one) + "\n" for one in LOG))
    return folder


def test_what_was_kept_of_a_job_is_judged_as_it_was(seed: Path) -> None:
    (job,) = evidence.kept_jobs(seed)
    read = evidence.read(job, reference.load_kept(seed))
    written = Written(job)
    written.change(hits=read.hits, kept=read.kept, excused=read.excused, looks=read.looks)
    written.change(refusals=read.refusals)
    assert read == written.written()
    assert judge(read).lost_over_interval == 1, "the snapshot of step 9 was passed over"


def test_the_figures_of_a_run_are_those_of_its_last_judgement(seed: Path) -> None:
    done = CliRunner().invoke(main, ["judge", str(seed)])
    assert (done.exit_code, "gpt: 14 steps" in done.output) == (1, True), done.output
    part = results.read_part(seed.with_suffix(".json"))
    assert part["metrics"]["lost_steps_fsdp_over_interval"] == 1
    assert part["metrics"]["faults"] == 3
    assert part["metrics"]["memory_growth_mb"] == pytest.approx(4), (
        "by the log, not by a former sum"
    )
    assert part["commit"] == "abc", "of the product, not of the checker"


def test_a_folder_without_evidence_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["judge", str(tmp_path)])
    assert done.exit_code == 1
    assert "no job has a file seen.json" in done.output
