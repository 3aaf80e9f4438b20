"""Where the time of a job goes, and that nothing is counted twice or taken back."""

from __future__ import annotations

from regroup_trainer.coordinator.accounting import Account, Gpus
from regroup_trainer.protocol.ledger import Ledger


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
