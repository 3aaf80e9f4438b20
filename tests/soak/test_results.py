"""Parts of a soak are merged into one file of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import harness
from soak import results
from soak.checker import Verdict
from soak.memory_growth import Growth

GROWN = Growth(count=12, total=0.24, squares=0.0048)
"""Too little to know how fast."""
SAME = "abc".__eq__
"""The product has not changed since this commit."""


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


def part(folder: Path, seed: int, *verdicts: Verdict, commit: str = "abc") -> Path:
    """The file of a seed with three faults."""
    file = folder / f"seed-{seed}.json"
    figures = results.metrics(3, verdicts, {"operator": GROWN})
    kinds = ("rank-killed", "rank-killed", "etcd-away")
    faults = [{"number": n, "kind": kind, "proof": "gone"} for n, kind in enumerate(kinds, 1)]
    results.write_part(
        file,
        {
            "seed": seed,
            "commit": commit,
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
    document = json.loads(results.merge(parts, tmp_path / "out", SAME).read_text())
    lost = {
        row["case"]: row["median"] for row in document["rows"] if row["metric"] == "lost_steps_ddp"
    }
    assert lost == {"seed-7": 4, "seed-12": 0, "all-seeds": 4}
    assert {(one["seed"], one["commit"], len(one["faults"])) for one in document["parts"]} == {
        (7, "abc", 3),
        (12, "abc", 3),
    }


def test_each_figure_has_its_goal_and_says_whether_it_is_met(tmp_path: Path) -> None:
    parts = [part(tmp_path, 7, verdict(lost_whole_copies=4)), part(tmp_path, 12, commit="old")]
    document = json.loads(results.merge(parts, tmp_path / "out", SAME).read_text())
    found = {
        (row["case"], row["metric"]): (row["median"], row["goal"], row["verdict"])
        for row in document["rows"]
    }
    assert found["seed-7", "lost_steps_ddp"] == (4, "<= 0", "missed")
    assert found["seed-12", "lost_steps_ddp"] == (0, "<= 0", "met")
    assert found["all-seeds", "memory_growth_mb"] == (pytest.approx(2.0), "<= 5", "met")
    assert found["seed-7", "faults"] == (3, "", "")
    assert found["all-seeds", "faults"] == (6, ">= 500", "missed")
    assert found["all-seeds", "faults_after_last_change"] == (3, ">= 200", "missed")
    assert found["all-seeds", "seeds"] == (2, ">= 5", "missed")
    assert {name for name, (_, goal, _) in found.items() if not goal} == {
        ("seed-7", "faults"),
        ("seed-12", "faults"),
    }
    said = list(results.summary(document))
    assert "seed-7: lost_steps_ddp 4, wanted <= 0" in said
    assert "all-seeds: faults 6, wanted >= 500" in said


def test_a_row_names_the_product_and_the_checker_that_a_former_part_lacks(tmp_path: Path) -> None:
    former, later = part(tmp_path, 7, commit="old"), part(tmp_path, 12)
    results.write_part(later, {**results.read_part(later), "checker": "new"})
    document = json.loads(results.merge([former, later], tmp_path / "out", SAME).read_text())
    settings = {row["case"]: row["settings"] for row in document["rows"]}
    assert settings["seed-7"].endswith("product old, checker old")
    assert settings["seed-12"].endswith("product abc, checker new")
    assert [one["checker"] for one in document["parts"]] == ["old", "new"]


def test_seeds_are_added_to_those_that_were_merged_and_their_memory_counts_together(
    tmp_path: Path,
) -> None:
    first = results.merge([part(tmp_path, 7)], tmp_path / "first", SAME)
    assert "memory of operator: too few to know, by 12 differences" in results.summary(
        json.loads(first.read_text())
    )
    document = json.loads(
        results.merge([first, part(tmp_path, 12)], tmp_path / "out", SAME).read_text()
    )
    assert "memory of operator: 2.0 MB more per 100 faults, by 24 differences" in results.summary(
        document
    )
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
    document = json.loads(results.merge(parts, tmp_path / "out", SAME).read_text())
    found = {
        row["case"]: row["median"]
        for row in document["rows"]
        if row["metric"] == "memory_growth_mb"
    }
    assert found == {"seed-7": 6.9, "all-seeds": pytest.approx(2.0)}


def test_a_seed_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    one = part(tmp_path, 7)
    with pytest.raises(ValueError, match="a seed occurs twice"):
        results.merge([one, one], tmp_path / "out", SAME)


def test_faults_after_the_last_change_of_the_product_are_counted_apart(tmp_path: Path) -> None:
    parts = [
        part(tmp_path, 7, commit="old"),
        part(tmp_path, 8),
        part(tmp_path, 9, commit="abc-dirty"),
    ]
    document = json.loads(results.merge(parts, tmp_path / "out", SAME).read_text())
    assert [(one["seed"], one["after_last_change"]) for one in document["parts"]] == [
        (7, False),
        (8, True),
        (9, False),
    ]
    assert (document["struck"]["rank-killed"], document["struck"]["overload"]) == (6, 0)
    assert document["after_last_change"]["rank-killed"] == 2
    said = list(results.summary(document))
    assert said[0] == (
        "3 of 9 faults follow the last change of the product's code (wanted: at least 200 of 500)"
    )
    assert said[1].startswith("never struck: pod-deleted, ")
    assert "etcd-away" not in said[1]
    assert (
        said[3]
        == "seed 7: 3 faults not after that change, at old, judged by old; missed 0; not judged 0"
    )


def test_a_seed_says_how_many_of_its_faults_came_to_nothing(tmp_path: Path) -> None:
    file = part(tmp_path, 7)
    results.write_part(file, {**results.read_part(file), "drawn": 5})
    document = json.loads(results.merge([file], tmp_path / "out", SAME).read_text())
    assert list(results.summary(document))[3].startswith("seed 7: 3 of 5 drawn faults after that ")


def test_what_was_missed_is_listed_with_its_reason_and_former_numbers_stay_readable(
    tmp_path: Path,
) -> None:
    """Former parts had a number, and later ones a list with other words for the reason."""
    written = {}
    for seed, missed in {
        7: 2,
        8: [{"kind": "overload", "job": "e1-0-ddp", "missed": "no process"}],
        9: [{"kind": "etcd-away", "job": "e1-0-ddp", "reason": "it does not run"}],
    }.items():
        file = part(tmp_path, seed)
        results.write_part(file, {**results.read_part(file), "missed": missed, "unjudged": 0})
        written[seed] = file
    once = results.merge(list(written.values()), tmp_path / "once", SAME)
    document = json.loads(results.merge([once], tmp_path / "out", SAME).read_text())
    reasons = [[fault["reason"] for fault in one["missed"]] for one in document["parts"]]
    assert reasons == [["reason not recorded"] * 2, ["no process"], ["it does not run"]]
    assert document["parts"][2]["missed"][0]["job"] == "e1-0-ddp"
    said = list(results.summary(document))
    assert "missed 2 (reason not recorded)" in said[3]
    assert "missed 1 (overload: no process); not judged 0" in said[4]


def test_the_committed_results_can_be_merged_with_new_ones(tmp_path: Path) -> None:
    former = harness.RESULTS / "soak.json"
    merged = results.merge([former, part(tmp_path, 9007)], tmp_path / "out", SAME)
    document = json.loads(merged.read_text())
    assert document["parts"][-1]["seed"] == 9007
    assert all(isinstance(one["missed"], list) for one in document["parts"])
    assert list(results.summary(document))
