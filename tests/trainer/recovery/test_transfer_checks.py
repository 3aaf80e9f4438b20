"""A state that two real ranks exchange in many pieces: it arrives whole, or it is known that it did
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config
from tests.support.whole_state import equal

PIECE_BYTES = 32
STEPS, SAVED, LEFT = 7, 3, 5
"""A checkpoint is of step 3; a rank leaves its generation after step 5; 7 steps are to be done."""


def exchange(template: Template, folder: Path, damaged: int | None) -> list[dict[str, Any]]:
    """What the ranks write down that send and receive a state of several pieces, of which one may
    be damaged.
    """
    options = {"folder": str(folder), "piece_bytes": PIECE_BYTES, "damaged": damaged}
    outcomes = template.run(
        generation(folder, 2, train_config()),
        entry="tests.support.rank_faults:send_state",
        options=options,
    )
    succeeded(outcomes)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_a_state_of_several_pieces_arrives_equal(template: Template, tmp_path: Path) -> None:
    sent, received = exchange(template, tmp_path, damaged=None)
    assert (received["arrived"], received["beside"], received["step"]) == (
        True,
        "beside",
        sent["step"],
    )
    assert equal(sent["state"], received["state"])


def test_no_piece_is_larger_than_what_either_end_should_hold(
    template: Template, tmp_path: Path
) -> None:
    sent, _ = exchange(template, tmp_path, damaged=None)
    matrix = 7 * 5 * 4
    assert max(sent["sizes"]) == PIECE_BYTES
    assert sent["sizes"].count(matrix % PIECE_BYTES) == 3  # parameter and two moments
    assert (
        sum(sent["sizes"]) == 3 * (matrix + 5 * 4) + 2 * 4
    )  # those of the bias too, and AdamW's counts


@pytest.mark.parametrize(
    "damaged", [0, 3, 19], ids=["the first", "one in the middle of a tensor", "the last"]
)
def test_a_piece_that_changes_on_its_way_is_noticed(
    template: Template, tmp_path: Path, damaged: int
) -> None:
    sent, received = exchange(template, tmp_path, damaged)
    assert len(sent["sizes"]) == 20
    assert not received["arrived"]


def meet(template: Template, directory: Path, damaged: int | None) -> list[RankOutcome]:
    """One rank comes with a state in memory that is newer than the checkpoint, and sends it to a
    new one.
    """
    train = train_config(training={"steps": STEPS})
    stopped = template.run(generation(directory, 1, train), decisions={SAVED: Decision.STOP})
    assert [report.step for report in stopped[0].saved] == [SAVED], stopped[0].stderr
    record = generation(directory, 2, train, number=GenerationNumber(1, 3)).model_copy(
        update={"restored_from": "Peers"}
    )
    options = {"piece_bytes": 4096, "damaged": damaged, "before": (1, 2), "step": LEFT}
    outcomes = template.run(
        record, entry="tests.support.rank_faults:meet_resident_rank", options=options
    )
    succeeded(outcomes)
    return outcomes


@pytest.fixture(scope="module")
def undisturbed(template: Template, tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    record = generation(
        tmp_path_factory.mktemp("undisturbed"), 1, train_config(training={"steps": STEPS})
    )
    return template.run(record)[0].losses


@pytest.mark.parametrize(
    ("damaged", "restored_from", "step"),
    [
        pytest.param(None, "Peers", LEFT, id="whole"),
        pytest.param(5, "Checkpoint", SAVED, id="damaged"),
    ],
)
def test_what_did_not_arrive_whole_leaves_the_state_of_all_ranks_to_the_checkpoint(
    template: Template,
    tmp_path: Path,
    undisturbed: list[float | None],
    damaged: int | None,
    restored_from: str,
    step: int,
) -> None:
    first, second = meet(template, tmp_path, damaged)
    assert (second.restored.restored_from, second.restored.step) == (restored_from, step)
    last = first.of(type(second.restored))[-1]
    assert (last.restored_from, last.step) == (restored_from, step)
    losses = [
        report.loss for report in first.progress if report.generation == second.restored.generation
    ]
    assert losses == pytest.approx(undisturbed[step:], rel=1e-5)
