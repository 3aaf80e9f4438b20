"""The checker finds each fault that is planted in what a sound job left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from soak import checker, records
from soak.evidence import Hit, Kept, Sample, WholeSnapshot
from soak.pod_states import TAKEN, UNSEEN, PodLook
from soak.records import Line, Stored
from soak.replay import replay
from soak.watch import twice
from tests.support.soak_job import BATCH, FIRST, SECOND, Json, Written, line


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_a_sound_job_is_clean_and_its_lost_steps_are_counted(written: Written) -> None:
    verdict = written.verdict()
    assert verdict.is_clean, verdict
    assert (verdict.steps, verdict.compared) == (14, 14)
    assert [(loss.generation, loss.steps) for loss in verdict.lost] == [(SECOND, 2)]


def _make_a_step_twice(written: Written) -> None:
    written.second.append(line(14, SECOND))


def _make_a_step_that_the_generation_had(written: Written) -> None:
    written.second.insert(0, line(8, SECOND))


def _skip_a_step(written: Written) -> None:
    del written.second[2]


def _skip_a_step_beside_a_recorded_gap(written: Written) -> None:
    del written.second[2:4]
    written.gaps.append({"first": 11, "last": 11})


def _lose_a_line_inside_the_history(written: Written) -> None:
    written.first[3] = {"step": "?"}


def _train_on_a_sample_twice(written: Written) -> None:
    written.second[3]["first"] -= 1


def _train_on_other_samples(written: Written) -> None:
    written.second[3]["hash"] += 1


def _train_on_too_few_samples(written: Written) -> None:
    written.second[-1]["count"] = BATCH - 1


def _have_a_wrong_loss(written: Written) -> None:
    written.second[3]["loss"] *= 1.002


def _have_no_loss(written: Written) -> None:
    written.second[3]["loss"] = None


def _repeat_a_step_otherwise(written: Written) -> None:
    written.second.insert(0, line(8, FIRST, hash=1))


def _name_a_parent_that_is_not_there(written: Written) -> None:
    written.links[1]["parent"] = [1, 0]


def _hide_lost_steps(written: Written) -> None:
    written.change(status={"goodput": {"lostSteps": 0}, "progress": {"step": 14}})


def _record_no_recovery(written: Written) -> None:
    written.change(recoveries=())


def _record_other_lost_steps(written: Written) -> None:
    written.change(recoveries=({"generation": "1.2", "resumedFromStep": 8, "lostSteps": 1},))


def _claim_a_step_too_many(written: Written) -> None:
    written.change(status={"goodput": {"lostSteps": 2}, "progress": {"step": 15}})


def _claim_another_step_of_resumption(written: Written) -> None:
    written.change(recoveries=({"generation": "1.2", "resumedFromStep": 9},))


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (_make_a_step_twice, "made step 14 twice"),
        (_make_a_step_that_the_generation_had, "made step 8, but resumed from step 8"),
        (_skip_a_step, "step 10 is followed by step 12"),
        (_skip_a_step_beside_a_recorded_gap, "step 10 is followed by step 13"),
        (_lose_a_line_inside_the_history, "1-1.jsonl, line 4"),
        (_train_on_a_sample_twice, "step 12 begins with sample 65 instead of 66"),
        (_train_on_other_samples, "step 12 trained on other samples"),
        (_train_on_too_few_samples, "step 14 has 5 samples instead of 6"),
        (_have_a_wrong_loss, "step 12 has the loss"),
        (_have_no_loss, "step 12 has the loss None"),
        (_repeat_a_step_otherwise, "repeats step 8 otherwise"),
        (_name_a_parent_that_is_not_there, "(1, 0), which has no record"),
        (_hide_lost_steps, "lostSteps is 0, but the replay gives 2"),
        (_record_no_recovery, "generation (1, 2) lost 2 steps, but no record is of it"),
        (_record_other_lost_steps, "generation (1, 2) lost 2 steps, but 1 records say 1"),
        (_claim_a_step_too_many, "progress.step is 15 at the end, but the history ends at 14"),
        (_claim_another_step_of_resumption, "resumed from step 9; its lineage record says 8"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[Written], None], sentence: str, written: Written
) -> None:
    plant(written)
    verdict = written.verdict()
    assert [one for one in verdict.mismatches if sentence in one], verdict.mismatches
    assert not verdict.is_clean


def test_losses_are_compared_up_to_the_step_where_rounding_grows(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checker.LOSS_STEPS, "gpt", 12)
    written.second[4]["loss"] *= 1.002  # step 13
    verdict = written.verdict()
    assert (verdict.is_clean, verdict.steps, verdict.compared) == (True, 14, 12)
    written.second[4]["hash"] += 1
    assert "step 13 trained on other samples" in written.verdict().mismatches[0]
    written.second[3]["loss"] *= 1.002
    assert "step 12 has the loss" in written.verdict().mismatches[0]


def test_a_job_that_was_compared_with_nothing_is_not_clean(written: Written) -> None:
    written.change(reference={})
    verdict = written.verdict()
    assert verdict.compared == 0
    assert not verdict.is_clean
    assert "14 of 14 steps were not compared, from step 1 on" in verdict.mismatches[0]


def test_an_undisturbed_run_that_ends_before_the_job_is_no_comparison(written: Written) -> None:
    written.change(reference={step: records._line(line(step)) for step in range(1, 13)})
    assert written.verdict().mismatches == (
        "2 of 14 steps were not compared, from step 13 on: the undisturbed run ends at step 12",
    )


def test_snapshots_that_nobody_ever_saw_are_a_finding(written: Written) -> None:
    written.change(checkpoint_steps=6)
    assert written.verdict().mismatches == ("no memory snapshot was ever seen to be whole",)
    snapshot = WholeSnapshot(Stored(5, FIRST), (frozenset({"w0", "w1"}),))
    written.change(kept=(Kept(6.0, 6.1, (snapshot,), ()),))
    assert written.verdict().is_clean, written.verdict()


def test_a_job_without_a_step_is_not_clean(written: Written) -> None:
    written.first, written.second = [], []
    written.change(status={}, recoveries=())
    assert "nothing was compared: the history has no step" in written.verdict().mismatches


def test_a_gap_that_was_recorded_and_a_repeated_line_are_no_faults(written: Written) -> None:
    del written.second[2:4]
    written.gaps.append({"first": 11, "last": 12})
    written.second.insert(0, written.first.pop(7))
    written.first[7:] = []
    written.change(status={"goodput": {"lostSteps": 0}, "progress": {"step": 14}})
    assert written.verdict().is_clean, written.verdict()


def test_steps_that_were_reported_and_not_flushed_explain_a_difference(written: Written) -> None:
    written.change(
        status={"goodput": {"lostSteps": 5}, "progress": {"step": 14}},
        recoveries=(
            {"generation": "1.2", "resumedFromStep": 8, "lostSteps": 5, "unflushedSteps": 3},
        ),
    )
    assert written.verdict().is_clean, written.verdict()


def test_a_half_written_last_line_is_no_fault(written: Written) -> None:
    written.verdict()
    with (written.folder / "history" / "1-2.jsonl").open("a") as file:
        file.write('{"generation": [1, 2], "st')
    assert not replay(records.read(written.folder)).mismatches


def test_a_job_is_stuck_when_it_makes_no_step_for_longer_than_allowed(written: Written) -> None:
    still = [Sample(14.0 + second, 14) for second in range(70)]
    written.change(
        samples=(
            *written.evidence.samples,
            *still,
        )
    )
    assert written.verdict().stuck == ("no progress beyond step 14 for 69 s",)
    written.change(
        samples=(
            *written.evidence.samples,
            Sample(84.0, 15),
        )
    )
    assert written.verdict().stuck == ("no progress beyond step 14 for 69 s",)
    written.change(excused=((20.0, 25.0),))
    assert written.verdict().stuck == ("no progress beyond step 14 for 64 s",)
    written.change(excused=((22.0, 25.0), (20.0, 23.0), (70.0, 200.0)))
    assert not written.verdict().stuck, "the clock stands while the volume is away"


def test_the_clock_stands_while_kubernetes_does_not_start_pods_that_are_needed(
    written: Written,
) -> None:
    written.change(samples=tuple(Sample(float(second), 14) for second in range(70)))
    assert written.verdict().stuck

    def stuck(meeting: str, workers: str) -> bool:
        """With pods whose states have these first letters, from second 10 to second 30."""
        states = {name[0]: name for name in (UNSEEN, TAKEN)}
        look = [tuple(states[letter] for letter in role) for role in (meeting, workers)]
        looks = tuple(PodLook(float(second), *look) for second in range(10, 31))
        written.change(looks=looks, min_replicas=2)
        return bool(written.verdict().stuck)

    assert not stuck("u", "ttt")
    assert not stuck("t", "tuu")
    assert not stuck("t", "uu")
    assert stuck("t", "ttu"), "two can train"
    assert stuck("", "ttt"), "the operator made no pod of a coordinator"
    assert stuck("t", "u"), "the operator made one pod of the two that are needed"


def test_steps_that_are_made_again_are_no_progress(written: Written) -> None:
    loop = [Sample(14.0 + second, 10 + second % 5) for second in range(70)]
    written.change(
        samples=(
            *written.evidence.samples,
            *loop,
        )
    )
    assert written.verdict().stuck == ("no progress beyond step 14 for 69 s",)


def test_steps_that_a_fault_has_cost_are_progress_when_they_are_made_again(
    written: Written,
) -> None:
    """One a second, from second 64 on. None is beyond step 14 for 62 seconds."""
    before = [Sample(14.0 + second, 14) for second in range(48)]
    again = [Sample(63.0 + second, second) for second in range(14)]
    written.change(samples=(*written.evidence.samples, *before, Sample(62.0, None), *again))
    assert written.verdict().stuck == ("no progress beyond step 14 for 62 s",)
    spared, struck = Hit(14.5, frozenset(), 2), Hit(14.5, frozenset({0, 1}), 2)
    written.change(hits=(spared,))
    assert written.verdict().stuck, "it hit another job"
    written.change(hits=(struck,))
    assert not written.verdict().stuck
    once_more = [Sample(77.0 + second, second) for second in range(14)]
    written.change(hits=(struck, spared))
    written.change(samples=(*written.evidence.samples, *once_more))
    assert written.verdict().stuck == ("no progress beyond step 14 for 76 s",), "one was by itself"


def test_the_clock_begins_anew_with_steps_that_are_made_again(written: Written) -> None:
    """Two faults of 40 s each, and a few steps between them: less than the job had before."""
    first = [Sample(14.0 + second, 14) for second in range(40)]
    between = [Sample(54.0 + second, second) for second in range(5)]
    second = [Sample(59.0 + second, 4) for second in range(40)]
    again = [Sample(99.0 + second, second) for second in range(16)]
    hits = tuple(Hit(time, frozenset({0, 1}), 2) for time in (14.5, 59.5))
    written.change(samples=(*written.evidence.samples, *first, *between, *second, *again))
    written.change(hits=hits, copy_size=2)
    assert not written.verdict().stuck
    written.change(hits=hits[:1])
    assert written.verdict().stuck == ("no progress beyond step 14 for 99 s",)


def test_generations_that_form_without_a_step_are_no_progress(written: Written) -> None:
    forming = [Sample(14.0 + second, 14 if second % 9 else None) for second in range(70)]
    written.change(
        samples=(
            *written.evidence.samples,
            *forming,
        )
    )
    assert written.verdict().stuck == ("no progress beyond step 14 for 69 s",)


def test_a_job_that_nobody_looked_at_is_not_clean(written: Written) -> None:
    written.change(samples=())
    assert written.verdict().stuck == ("nobody looked at its steps while it trained",)


def test_a_job_that_cannot_be_suspended_is_stuck(written: Written) -> None:
    written.change(was_suspended=False)
    assert written.verdict().stuck == ("it was not suspended in time",)


def test_a_job_that_never_makes_a_step_is_stuck(written: Written) -> None:
    written.change(samples=tuple(Sample(float(second), None) for second in range(70)))
    assert written.verdict().stuck == ("no progress beyond step 0 for 69 s",)


def test_two_pods_of_a_worker_are_found_unless_one_has_ended(written: Written) -> None:
    def pod(name: str, phase: str = "Running") -> Json:
        return {"metadata": {"name": name}, "status": {"phase": phase}}

    assert twice([pod("a-w0-1"), pod("a-w0-2"), pod("a-w1-1"), pod("b-w0-1")]) == [
        "worker 0 of a has 2 pods"
    ]
    assert not twice([pod("a-w0-1", "Failed"), pod("a-w0-2", "Pending"), pod("a-w1-1")])
    written.change(duplicates=["worker 0 of a has 2 pods"])
    assert not written.verdict().is_clean


def restarted(**counts: int) -> Json:
    """A status that is right but for these counts."""
    return {"goodput": {"lostSteps": 2}, "progress": {"step": 14}, "restarts": counts}


@pytest.mark.parametrize(
    ("counts", "faults", "explained"),
    [
        ({"application": 1}, ("rank-killed",), True),
        ({"application": 2}, ("rank-killed", "rank-out-of-memory"), True),
        ({"application": 2}, ("rank-killed", "volume-full", "node-power-cut"), False),
        ({"application": 1}, ("whole-job-killed", "all-nodes-power-cut"), False),
        ({"infrastructure": 3, "preemption": 1, "resize": 4}, (), True),
        ({"hang": 1}, ("node-frozen",), True),
        ({"hang": 1}, ("volume-silent", "volume-away"), False),
        ({"application": 1}, None, True),
    ],
    ids=str,
)
def test_restarts_are_not_counted_as_what_no_fault_explains(
    counts: dict[str, int], faults: tuple[str, ...] | None, explained: bool, written: Written
) -> None:
    written.change(status=restarted(**counts), faults=faults)
    assert written.verdict().is_clean == explained, written.verdict()


def test_a_wrong_count_is_named_with_what_the_faults_allow(written: Written) -> None:
    written.change(status=restarted(application=2), faults=("rank-killed", "node-power-cut"))
    assert written.verdict().mismatches == (
        "status.restarts.application is 2, but no more than 1 of the faults may be counted so",
    )


def test_the_newest_step_is_read_from_the_newest_generation(written: Written) -> None:
    assert records.newest_step(written.folder) is None
    written.verdict()
    assert records.newest_step(written.folder) == 14


def test_a_damaged_lineage_is_an_error_that_names_the_file(written: Written) -> None:
    written.verdict()
    (written.folder / "lineage" / "1-2.json").write_text("{}")
    with pytest.raises(ValueError, match=r"1-2\.json is damaged"):
        records.read(written.folder)


def test_lines_are_compared_as_they_were_written() -> None:
    assert records._line(line(3)) == Line(FIRST, 3, 12, BATCH, 1003, 5 / 3)
