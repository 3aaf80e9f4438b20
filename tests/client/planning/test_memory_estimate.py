"""Who holds what. That the sums are right is measured in
tests/trainer/parallel/test_planned_memory.py.
"""

from __future__ import annotations

from regroup.planning.hardware import GPUS
from regroup.planning.layouts import Batch, Checkpointing, Grid, Layout
from regroup.planning.memory_estimate import Memory, estimate, usable
from regroup.planning.transformer import of_parameters

MODEL = of_parameters(1e9, 50257)
BATCH = Batch(64, 1024)
BF16 = 2


def memory(
    grid: Grid, micro_batch: int = 1, checkpointing: Checkpointing = "none", batch: Batch = BATCH
) -> Memory:
    return estimate(MODEL, Layout(grid, micro_batch, checkpointing), batch, BF16)


DDP, ZERO = Grid("ddp", 1, 1, 1, 8), Grid("zero", 1, 1, 1, 8)
ALONE, SPLIT = Grid("ddp", 1, 1, 1, 1), Grid("ddp", 2, 1, 1, 1)
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


def test_accumulation_with_sharding_keeps_shards_of_gradients_and_no_whole_ones() -> None:
    once, often = memory(FSDP, batch=Batch(8, 1024)), memory(FSDP)
    assert often.working == once.working
    assert once.gradients == 0  # they appear as activations are freed
    assert often.gradients == memory(DDP).gradients // 8


def test_accumulation_without_sharding_makes_gradients_beside_those_of_earlier_passes() -> None:
    for grid in (DDP, Grid("ddp", 1, 1, 1, 1)):
        one, more = Batch(grid.data, 1024), Batch(2 * grid.data, 1024)
        often, once = memory(grid, batch=more), memory(grid, batch=one)
        assert often.total - once.total == once.gradients


def test_within_model_parallelism_parameters_are_copied_in_the_precision_of_the_pass() -> None:
    """FSDP2's machinery replicates there: it adds gradients up in fp32, without a second set."""
    half = estimate(MODEL, Layout(SPLIT, 1, "none"), BATCH, BF16)
    full = estimate(MODEL, Layout(SPLIT, 1, "none"), BATCH, 4)
    assert half.gradients == full.gradients == 4 * MODEL.parameters // 2
    assert full.working - half.working > (4 - BF16) * MODEL.parameters // 2
    assert half.working < 4 * MODEL.parameters // 2


def test_a_pipeline_of_shards_has_whole_gradients_or_their_shards() -> None:
    found = memory(Grid("fsdp", 1, 2, 4, 1))
    assert found.gradients == 0
    assert found.working > 4 * MODEL.layers // 2 * MODEL.block_parameters


def test_tensor_ranks_keep_whole_summands_of_what_leaves_a_block() -> None:
    whole, split = (memory(grid, checkpointing="selective").activations for grid in (ALONE, SPLIT))
    summands = MODEL.layers * BATCH.sequence_length * 2 * MODEL.width * BF16
    assert 2 * split - whole == summands


def test_accumulation_decides_whether_a_hundred_billion_parameters_fit_64_a100() -> None:
    layout = Layout(Grid("fsdp", 1, 1, 64, 1), 1, "selective")
    large = of_parameters(100e9, 50257)
    once, often = (estimate(large, layout, Batch(samples, 2048), BF16) for samples in (64, 512))
    shard = 4 * large.parameters // 64
    assert often.total - once.total == shard
    assert once.total < usable(GPUS["a100-80"]) < often.total


def test_slices_of_sequences_have_a_slice_of_the_activations_but_all_keys_and_values() -> None:
    whole, sliced = memory(FSDP, 8), memory(Grid("fsdp", 1, 1, 4, 1, context=2), 8)
    assert whole.parameters == sliced.parameters
    assert whole.activations / 2 < sliced.activations < whole.activations


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


def test_a_micro_batch_is_not_larger_than_the_ranks_share() -> None:
    few = Batch(16, 1024)  # 2 samples for each of 8 ranks
    assert memory(FSDP, 8, batch=few) == memory(FSDP, 2, batch=few)
