"""Parts of a soak are merged into one file of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak import results
from soak.checker import Verdict
from soak.memory_growth import Growth

GROWN = Growth(count=12, total=0.24, squares=0.0048)
"""Too little to know how fast."""


def verdict(**found: object) -> Verdict:
    """A clean one, but for what is given."""
    clean = {
        "job": "gpt",
        "steps": 10,
        "compared": 10,
        "lost_whole_copies": 0,
        "lost_over_interval": 0,
        "stuck": (),
        "mismatches": (),
        "duplicates": (),
    }
    return Verdict(**{**clean, **found})  # type: ignore[arg-type]


def part(folder: Path, seed: int, *verdicts: Verdict) -> Path:
    """The file of a seed with three faults."""
    file = folder / f"seed-{seed}.json"
    figures = results.metrics(3, verdicts, {"operator": GROWN})
    faults = [{"number": number, "proof": "gone"} for number in (1, 2, 3)]
    results.write_part(
        file,
        {
            "seed": seed,
            "commit": "abc",
            "metrics": figures,
            "memory": results.sums({"operator": GROWN}),
            "missed": [],
            "faults": faults,
        },
    )
    return file


def test_what_verdicts_found_is_summed() -> None:
    found = results.metrics(
        5,
        [
            verdict(lost_whole_copies=2, mismatches=("one", "two")),
            verdict(lost_over_interval=3, stuck=("long",), duplicates=("twice", "twice")),
        ],
        {},
    )
    assert found == {
        "faults": 5,
        "lost_steps_ddp": 2,
        "lost_steps_fsdp_over_interval": 3,
        "lost_steps_known_window": 0,
        "stuck_jobs": 1,
        "mismatches": 2,
        "duplicate_pods": 1,
        "memory_growth_mb": None,
    }


def test_parts_become_rows_by_seed_with_commit_and_faults(tmp_path: Path) -> None:
    parts = [part(tmp_path, 12), part(tmp_path, 7, verdict(lost_whole_copies=4))]
    document = json.loads(results.merge(parts, tmp_path / "out").read_text())
    lost = {
        row["case"]: row["median"] for row in document["rows"] if row["metric"] == "lost_steps_ddp"
    }
    assert lost == {"seed-7": 4, "seed-12": 0, "all-seeds": 4}
    assert {(one["seed"], one["commit"], len(one["faults"])) for one in document["parts"]} == {
        (7, "abc", 3),
        (12, "abc", 3),
    }


def test_seeds_are_added_to_those_that_were_merged_and_their_memory_counts_together(
    tmp_path: Path,
) -> None:
    first = results.merge([part(tmp_path, 7)], tmp_path / "first")
    document = json.loads(results.merge([first, part(tmp_path, 12)], tmp_path / "out").read_text())
    found = {(row["case"], row["metric"]): row["median"] for row in document["rows"]}
    assert found["all-seeds", "faults"] == 6
    assert found["all-seeds", "memory_growth_mb"] == pytest.approx(2.0)
    assert ("seed-7", "memory_growth_mb") not in found


def test_a_part_with_the_sums_of_former_slopes_keeps_its_figure_and_adds_none(
    tmp_path: Path,
) -> None:
    former = part(tmp_path, 7)
    written = results.read_part(former)
    written["metrics"]["memory_growth_mb"] = 6.9
    written |= {"memory": {"worker": {"rise": 9.0, "spread": 100.0, "steps": 40}}, "missed": 1}
    results.write_part(former, written)
    parts = [former, *(part(tmp_path, seed) for seed in (12, 13))]
    document = json.loads(results.merge(parts, tmp_path / "out").read_text())
    found = {
        row["case"]: row["median"]
        for row in document["rows"]
        if row["metric"] == "memory_growth_mb"
    }
    assert found == {"seed-7": 6.9, "all-seeds": pytest.approx(2.0)}


def test_a_seed_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    one = part(tmp_path, 7)
    with pytest.raises(ValueError, match="a seed occurs twice"):
        results.merge([one, one], tmp_path / "out")
