"""The small pure parts of the coordinator."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.coordinator.accounting import Account, Gpus
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.formation import choose, make_record
from regroup_trainer.coordinator.journal import Journal
from regroup_trainer.coordinator.reserved_numbers import NUMBERS_AHEAD
from regroup_trainer.coordinator.restart_budget import RestartBackoff, describe
from regroup_trainer.coordinator.serving.number_files import SupersededError, reserve
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationNumber, MemberRecord
from regroup_trainer.protocol.ledger import Ledger
from tests.support import checkpoints
from tests.support.coordinator_simulation import make_desired
from tests.support.disks import fill, mounted
from tests.support.generations import make_generation, make_hello

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
HELLOS = [make_hello(index) for index in range(6)]


@given(
    st.lists(st.sampled_from(HELLOS), unique_by=lambda hello: hello.index),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_a_choice_is_whole_groups_within_bounds(
    hellos: list[object], replicas: int, group: int
) -> None:
    desired = make_desired(replicas=replicas, min_replicas=1, replica_group_size=group)
    chosen = choose(hellos, None, desired, "nowhere")  # type: ignore[arg-type]
    assert len(chosen) % group == 0
    assert len(chosen) <= min(replicas, 4)
    assert all(hello.index < replicas for hello in chosen)


def test_survivors_keep_their_order_and_joiners_follow() -> None:
    desired = make_desired(replicas=4)
    old = make_record(
        GenerationNumber(1, 1), (HELLOS[2], HELLOS[0], HELLOS[1]), desired, ("Nothing", "")
    )
    chosen = choose([HELLOS[3], HELLOS[1], HELLOS[2]], old, desired, "nowhere")
    assert [hello.index for hello in chosen] == [2, 1, 3]


def test_survivors_keep_their_place_within_a_replica_group() -> None:
    desired = make_desired(replicas=4, replica_group_size=2)
    old = make_record(GenerationNumber(1, 1), HELLOS[:4], desired, ("Nothing", ""))
    assert [hello.index for hello in choose(HELLOS[1:4], old, desired, "nowhere")] == [2, 1]
    back = make_hello(0, member="another")
    assert [hello.index for hello in choose([back, *HELLOS[1:4]], old, desired, "nowhere")] == [
        2,
        1,
        0,
        3,
    ]


def test_rank_zero_stays_when_every_node_is_the_coordinators() -> None:
    here = [make_hello(index, node="n") for index in range(3)]
    assert [hello.index for hello in choose(here, None, make_desired(), "n")] == [0, 1, 2]


def test_reservations_are_unique_and_return_the_newest_lineage_record(tmp_path: Path) -> None:
    first = reserve(tmp_path / "job", GenerationNumber(2, 1))
    assert first == (GenerationNumber(2, 1), None)
    (tmp_path / "job/lineage/1-9.json").write_text("{}")
    (tmp_path / "job/lineage/1-10.json").write_text("{}")
    assert reserve(tmp_path / "job", GenerationNumber(2, 1)) == (
        GenerationNumber(2, 2),
        GenerationNumber(1, 10),
    )


def test_a_restarted_coordinator_does_not_try_all_numbers_of_its_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lineage").mkdir()
    for n in range(1, 1001):
        (tmp_path / "lineage" / f"2-{n}.claim").touch()
    tried: list[str] = []
    plain_open = os.open

    def noted(path: Path, *flags: int) -> int:
        tried.append(path.name)
        return plain_open(path, *flags)

    monkeypatch.setattr(os, "open", noted)
    assert reserve(tmp_path, GenerationNumber(2, 1))[0] == GenerationNumber(2, 1001)
    assert tried == ["2-1000.claim", "2-1001.claim"]


def test_room_of_former_terms_is_taken_over_and_their_numbers_stay_taken(tmp_path: Path) -> None:
    """All but that of the generation that may be about to begin."""
    for n in (1, 2, 3):
        reserve(tmp_path / "job", GenerationNumber(1, n), own=GenerationNumber(1, 1))
    reserve(tmp_path / "job", GenerationNumber(2, 1))
    names = sorted(path.name for path in (tmp_path / "job/lineage").iterdir())
    numbers = ["1-1.claim", "1-2.claim", "1-3.claim", "2-1.claim"]
    assert names == sorted([*numbers, "1-1.room", "1-2.room", "2-1.room"])


def test_a_coordinator_that_has_a_successor_gets_no_number(tmp_path: Path) -> None:
    reserve(tmp_path / "job", GenerationNumber(2, 1))
    with pytest.raises(SupersededError, match="2"):
        reserve(tmp_path / "job", GenerationNumber(1, 9))
    assert reserve(tmp_path / "job", GenerationNumber(2, 1))[0] == GenerationNumber(2, 2)


@root_only
def test_a_number_comes_with_room_for_its_record_on_a_volume_that_is_full_by_then(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        layout = Layout(disk / "job")
        number, _ = reserve(layout.directory, GenerationNumber(1, 1))
        fill(disk / "hog")
        with pytest.raises(OSError, match="No space left"):
            reserve(layout.directory, GenerationNumber(1, 2))
        names = sorted(path.name for path in layout.lineage.iterdir())
        assert names == ["1-1.claim", "1-1.room"]  # the number that was refused is not taken
        checkpoints.begin(layout, 1)
        assert set(lineage.read(layout)) == {number}


def reserve_all(
    directory: Path, term: int, own: GenerationNumber | None = None
) -> list[GenerationNumber]:
    """The numbers that one process of a coordinator gets of a volume, until that refuses."""
    numbers: list[GenerationNumber] = []
    with contextlib.suppress(OSError):
        while len(numbers) < NUMBERS_AHEAD:
            first = GenerationNumber(term, numbers[-1].n + 1 if numbers else 1)
            number, _ = reserve(directory, first, own or next(iter(numbers), None))
            numbers.append(number)
    return numbers


@pytest.fixture
def refusing_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job's directory on a full volume, which takes not even an empty file. A coordinator has
    reserved numbers before, and its first generation has begun.
    """
    with mounted(tmp_path / "disk", "1m") as disk:
        reserve_all(disk / "job", 1)
        checkpoints.begin(Layout(disk / "job"), 1)
        fill(disk / "hog")
        plain_open = os.open

        def refuse(path: Path, flags: int, *mode: int) -> int:
            if flags & os.O_CREAT and not path.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return plain_open(path, flags, *mode)

        monkeypatch.setattr(os, "open", refuse)
        yield disk / "job"


@root_only
def test_coordinators_that_start_on_a_full_volume_take_over_unused_numbers(
    refusing_volume: Path,
) -> None:
    """Three processes of the same term, and two of newer ones. No number is given twice, and each
    has the room for its generation's record.
    """
    layout, given = Layout(refusing_volume), [GenerationNumber(1, n) for n in range(1, 9)]
    for term in (1, 1, 1, 2, 3):
        numbers = reserve_all(refusing_volume, term)
        assert len(numbers) >= NUMBERS_AHEAD - 2
        assert all(number.term == term for number in numbers)
        assert all(layout.lineage_room(number).exists() for number in numbers)
        given += numbers
    assert len(set(given)) == len(given)
    record = lineage.read(layout)[checkpoints.FIRST].model_copy(update={"generation": given[-1]})
    lineage.begin(layout, record)
    assert set(lineage.read(layout)) == {checkpoints.FIRST, given[-1]}


@root_only
def test_a_coordinator_on_a_full_volume_leaves_its_own_room_and_that_of_a_begin_under_way(
    refusing_volume: Path,
) -> None:
    """The lowest number that a former process has reserved may have been announced by it."""
    numbers = reserve_all(refusing_volume, 1)
    assert reserve_all(refusing_volume, 1, own=numbers[0]) == []
    layout = Layout(refusing_volume)
    assert layout.lineage_room(GenerationNumber(1, 2)).exists()
    checkpoints.begin(layout, numbers[0].n)
    assert len(reserve_all(refusing_volume, 1, own=numbers[0])) == 1


def test_backoff_doubles_without_progress_and_starts_again_after_it() -> None:
    restarts, desired = RestartBackoff(), make_desired(backoff_seconds=1.0, max_backoff_seconds=3.0)
    assert [restarts.pause(5, desired) for _ in range(5)] == [0.0, 1.0, 2.0, 3.0, 3.0]
    assert restarts.pause(6, desired) == 0.0


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            {"cause": "oom", "exit_code": 137, "signal": 9},
            (
                "rank 1 on gpt-w0-1 (node a) ran out of memory and was killed (raise the memory "
                "limit, or use less)"
            ),
        ),
        (
            {"cause": "signal", "exit_code": 137, "signal": 9, "message": "INFO step 45"},
            "rank 1 on gpt-w0-1 (node a) was ended by SIGKILL (out of memory?)",
        ),
        (
            {"cause": "peer", "exit_code": 137, "signal": 9, "message": "it hung and was killed"},
            "rank 1 on gpt-w0-1 (node a) was ended by SIGKILL: it hung and was killed",
        ),
        (
            {"cause": "error", "exit_code": 1, "message": "x\nValueError: y\n"},
            "rank 1 on gpt-w0-1 (node a) ended with exit code 1: ValueError: y",
        ),
    ],
)
def test_the_end_of_a_rank_is_described_in_a_sentence(
    end: dict[str, object], sentence: str
) -> None:
    report = RankExit.model_validate({"generation": GenerationNumber(1, 1), "rank": 1, **end})
    place = MemberRecord(member="u", index=0, pod="gpt-w0-1", node="a", first_rank=0, ranks=2)
    assert describe(report, place) == sentence


def test_the_account_splits_the_time_and_never_falls() -> None:
    account = Account(Ledger(seconds={"step": 5.0}, lost_steps=2), 0.0)
    account.spend("pending", 3.0, gpus=2)
    account.restored(first=True, restore_seconds=1.5, now=5.0, gpus=4)
    account.progress({"step": 4.0, "data_wait": 0.5}, 9.5, Gpus(4, 4))
    account.progress({"step": 6.0, "data_wait": 0.5}, 11.5, Gpus(4, 4))
    account.spend("idle", 12.0, gpus=4)
    account.restored(first=False, restore_seconds=9.0, now=13.0, gpus=4)
    account.progress({"step": 1.0}, 14.0, Gpus(4, 3))
    assert account.ledger().seconds == {
        "step": 12.0,
        "pending": 3.0,
        "checkpoint_restore": 2.5,
        "startup": 0.5,
        "data_wait": 0.5,
        "idle": 0.5,
        "rendezvous": 0.0,
    }
    account.merge(
        Ledger(seconds={"step": 1.0, "evaluation": 2.0}, lost_steps=1, restarts={"resize": 2})
    )
    ledger = account.ledger()
    assert (ledger.seconds["step"], ledger.seconds["evaluation"], ledger.lost_steps) == (
        12.0,
        2.0,
        2,
    )
    assert ledger.restarts == {"resize": 2}


def test_the_time_of_all_gpus_adds_up_and_steps_done_again_count_as_lost() -> None:
    account = Account(Ledger(), 0.0)
    account.spend("pending", 10.0, gpus=2)
    account.restored(first=True, restore_seconds=0.0, now=15.0, gpus=4)
    account.progress({"step": 20.0, "data_wait": 5.0}, 40.0, Gpus(held=5, training=4))
    before = account.ledger().gpu_seconds
    assert before == {"useful": 80.0, "lost": 0.0, "waiting": 20 + 20 + 20 + 25}
    account.lost(3, 6.0, gpus=4)
    assert account.ledger().gpu_seconds == before, "what is counted stays"
    account.restored(first=False, restore_seconds=0.0, now=40.0, gpus=2)
    account.progress({"step": 9.0}, 49.0, Gpus(held=2, training=2))
    assert account.ledger().gpu_seconds == {**before, "lost": 18.0}
    successor = Account(account.ledger(), 49.0)
    successor.progress({"step": 5.0}, 54.0, Gpus(held=2, training=2))
    after = successor.ledger().gpu_seconds
    assert (after["useful"], after["lost"]) == (80.0 + 4.0, 24.0)
    successor.merge(account.ledger())
    assert successor.ledger().gpu_seconds == after


def test_checkpoint_events_are_rare_and_the_journal_is_bounded() -> None:
    journal = Journal(1000.0)
    for second in range(200):
        journal.emit_rarely(1000.0 + second, "CheckpointSaved", "saved")
    assert len(journal.events()) == 4
    for _ in range(100):
        journal.emit(2000.0, "WorkerLost", "x" * 5000, "Warning")
    assert len(journal.events()) == 50
    sequences = [event.sequence for event in journal.events()]
    assert sequences == sorted(set(sequences))
    assert len(journal.events()[-1].message) == 1024


def test_a_rank_of_a_member_that_is_back_is_waited_for_again() -> None:
    current = CurrentGeneration(make_generation(1, 1), begun=0.0)
    assert current.rank_inside({"uid-1"}) == 1
    current.on_enrolled("uid-0")
    assert current.rank_inside({"uid-0", "uid-1"}) == 0
