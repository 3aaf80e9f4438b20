"""The events that a coordinator keeps for the operator."""

from __future__ import annotations

from regroup_trainer.coordinator.journal import Journal


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
