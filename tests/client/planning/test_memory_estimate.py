"""Who holds what. That the sums are right is measured in
tests/trainer/parallel/test_planned_memory.py.
"""

from __future__ import annotations

from regroup.planning.layouts import Batch, Checkpointing, Grid, Layout
from regroup.planning.memory_estimate import Memory, estimate
from regroup.planning.transformer import of_parameters

MODEL = of_parameters(1e9, 50257)
BATCH = Batch(64, 1024)
BF16 = 2


def memory(
    grid: Grid, micro_batch: int = 1, checkpointing: Checkpointing = "none", batch: Batch = BATCH
) -> Memory:
    return estimate(MODEL, Layout(grid, micro_batch, checkpointing), batch, BF16)


DDP, ZERO = Grid("ddp", 1, 1, 1, 8), Grid("zero", 1, 1, 1, 8)
FSDP, HSDP = Grid("fsdp", 1, 1, 8, 1), Grid("hsdp", 1, 1, 4, 2)


def test_states_of_a_replica_are_sixteen_bytes_a_parameter() -> None:
    found = memory(DDP)
    assert found.parameters + found.gradients + found.optimizer == 16 * MODEL.parameters


def test_zero_shares_the_optimizers_state_and_nothing_else() -> None:
    found, replicated = memory(ZERO), memory(DDP)
    assert found.optimizer == replicated.optimizer // 8
    assert (found.parameters, found.gradients) == (replicated.parameters, replicated.gradients)


def test_sharding_shares_all_over_the_shard_group() -> None:
    assert memory(FSDP).parameters == memory(DDP).parameters // 8
    assert memory(HSDP).optimizer == memory(DDP).optimizer // 4


def test_accumulation_with_sharding_keeps_no_whole_gradients() -> None:
    once, often = memory(FSDP, batch=Batch(8, 1024)), memory(FSDP)
    assert often.working == once.working


def test_recomputation_keeps_less() -> None:
    kept = [memory(DDP, checkpointing=kind).activations for kind in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 5 * kept[2]


def test_the_first_stage_of_a_pipeline_keeps_a_micro_batch_for_each_stage() -> None:
    layers = MODEL.layers
    deep = memory(Grid("ddp", 1, layers, 1, 1))
    assert deep.activations == memory(Grid("ddp", 1, 1, 1, 1)).activations


def test_a_loss_in_chunks_needs_less_at_a_time() -> None:
    whole = memory(DDP, 8, "full")
    chunked = memory(DDP, 8, "full", Batch(BATCH.samples, BATCH.sequence_length, loss_chunks=8))
    assert chunked.working < whole.working
