"""Which data sets of a custom loop count as the same."""

from __future__ import annotations

import pytest

from regroup_trainer.data.data_set_fingerprint import VARY, DataSetFingerprint, agree

A, B = "a" * 16, "b" * 16
KIND = "Points of 50"
UNKNOWN, VARIES = DataSetFingerprint(KIND), DataSetFingerprint(KIND, VARY)
ALONE, OTHER_ALONE = DataSetFingerprint(KIND, A), DataSetFingerprint(KIND, B)
PROVEN, OTHER_PROVEN = DataSetFingerprint(KIND, A, True), DataSetFingerprint(KIND, B, True)


@pytest.mark.parametrize("one", [UNKNOWN, VARIES, ALONE, PROVEN], ids=str)
def test_what_a_checkpoint_holds_is_read_back(one: DataSetFingerprint) -> None:
    assert DataSetFingerprint.parse(str(one)) == one


def test_checkpoints_hold_words() -> None:
    assert str(UNKNOWN) == "Points of 50", "as that of older releases"
    assert str(PROVEN) == f"Points of 50, samples {A}"
    assert str(ALONE) == f"Points of 50, samples {A} by one worker"
    assert str(VARIES) == "Points of 50, samples vary"
    assert DataSetFingerprint.parse("a, samples of anything") == DataSetFingerprint(
        "a, samples of anything"
    )


@pytest.mark.parametrize(
    ("then", "now", "known"),
    [
        (PROVEN, PROVEN, PROVEN),
        (PROVEN, OTHER_PROVEN, None),
        (PROVEN, OTHER_ALONE, None),
        (ALONE, OTHER_PROVEN, None),
        (ALONE, ALONE, PROVEN),
        (ALONE, OTHER_ALONE, VARIES),
        (UNKNOWN, ALONE, ALONE),
        (PROVEN, UNKNOWN, PROVEN),
        (VARIES, PROVEN, VARIES),
        (PROVEN, VARIES, VARIES),
        (PROVEN, DataSetFingerprint("Points of 60", A, True), None),
        (VARIES, DataSetFingerprint("Others of 50", VARY), None),
    ],
    ids=str,
)
def test_a_run_goes_on_unless_its_data_set_is_another_one_for_certain(
    then: DataSetFingerprint, now: DataSetFingerprint, known: DataSetFingerprint | None
) -> None:
    assert then.continued_by(now) == known


@pytest.mark.parametrize(
    ("then", "now", "doubted"),
    [
        (ALONE, OTHER_ALONE, True),
        (ALONE, ALONE, False),
        (PROVEN, OTHER_ALONE, False),
        (ALONE, OTHER_PROVEN, False),
        (ALONE, VARIES, False),
        (UNKNOWN, ALONE, False),
        (ALONE, DataSetFingerprint("Points of 60", B), False),
    ],
    ids=str,
)
def test_only_two_readings_of_which_none_is_proven_leave_a_doubt(
    then: DataSetFingerprint, now: DataSetFingerprint, doubted: bool
) -> None:
    assert then.is_doubted_by(now) == doubted


def test_a_third_process_tells_another_data_set_from_one_that_varies() -> None:
    assert ALONE.continued_by(OTHER_ALONE, B) is None
    assert ALONE.continued_by(OTHER_ALONE, "c" * 16) == VARIES


@pytest.mark.parametrize(
    ("found", "agreed"),
    [
        ([("w0", ALONE), ("w1", ALONE)], PROVEN),
        ([("w0", ALONE), ("w0", ALONE)], ALONE),
        ([("w0", ALONE), ("w0", OTHER_ALONE)], VARIES),
        ([("w0", ALONE), ("w1", VARIES)], VARIES),
        ([("w0", ALONE), ("w1", UNKNOWN)], ALONE),
        ([("w0", UNKNOWN)], UNKNOWN),
        ([("w0", ALONE), ("w1", DataSetFingerprint("Points of 60"))], None),
        ([("w0", OTHER_ALONE), ("w1", PROVEN)], PROVEN),  # who has trained is right
        ([("w0", VARIES), ("w1", PROVEN)], VARIES),
    ],
    ids=str,
)
def test_ranks_agree_by_what_their_workers_have_read(
    found: list[tuple[str, DataSetFingerprint]], agreed: DataSetFingerprint | None
) -> None:
    assert agree(found) == agreed
