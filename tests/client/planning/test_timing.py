"""Bytes and seconds of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regroup.planning.hardware import GPUS, cluster
from regroup.planning.layouts import Batch, Checkpointing, Grid, Layout
from regroup.planning.timing import StepTime, Traffic, estimate
from regroup.planning.transformer import of_parameters

MODEL = of_parameters(10e9, 50257)
MACHINES = cluster(GPUS["a100-80"], 4)
BATCH = Batch(64, 2048)


def step(
    grid: Grid, micro_batch: int = 1, checkpointing: Checkpointing = "none", batch: Batch = BATCH
) -> StepTime:
    return estimate(MODEL, Layout(grid, micro_batch, checkpointing), batch, MACHINES)


DDP, ZERO, FSDP = Grid("ddp", 1, 1, 1, 32), Grid("zero", 1, 1, 1, 32), Grid("fsdp", 1, 1, 32, 1)
HSDP, TENSOR, PIPELINE = Grid("hsdp", 1, 1, 8, 4), Grid("ddp", 8, 1, 1, 4), Grid("ddp", 1, 4, 1, 8)


def test_replication_sends_the_gradients_twice_around_the_ring() -> None:
    (part,) = step(DDP).traffic
    assert (part.kind, part.link) == ("all-reduce", "network")
    assert part.sent == pytest.approx(2 * 31 / 32 * 4 * MODEL.parameters)


def test_zero_sends_what_ddp_does_and_the_updated_parameters_nothing_of_which_is_hidden() -> None:
    gradients, updated = step(ZERO).traffic
    assert gradients.sent == step(DDP).traffic[0].sent
    assert updated.exposed == updated.seconds > 0


def test_sharding_gathers_twice_and_reduces_once_for_each_micro_batch() -> None:
    one, two = step(FSDP, 2), step(FSDP, 1)
    assert two.traffic[0].sent == pytest.approx(2 * one.traffic[0].sent)
    assert two.traffic[1].sent == pytest.approx(2 * one.traffic[1].sent)


def test_hybrid_sharding_keeps_the_gathers_in_the_machine() -> None:
    links = {part.purpose: part.link for part in step(HSDP).traffic}
    assert links == {
        "parameters": "local",
        "gradients": "local",
        "gradients of replicas": "network",
    }
    assert step(HSDP).sent("network") < step(FSDP).sent("network") / 8


def test_tensor_parallelism_waits_for_its_links_in_every_layer() -> None:
    time = step(TENSOR, 2)
    layers = [part for part in time.traffic if part.purpose == "activations of layers"]
    assert {part.kind for part in layers} == {"all-gather", "reduce-scatter"}
    assert all(part.exposed == part.seconds and part.link == "local" for part in layers)


def test_slices_of_sequences_wait_for_all_keys_and_values_and_attend_to_all_positions() -> None:
    time, whole = step(Grid("fsdp", 1, 1, 8, 1, context=4), 4), step(FSDP)
    gathered, scattered = (part for part in time.traffic if part.purpose == "keys and values")
    assert (gathered.kind, scattered.kind) == ("all-gather", "reduce-scatter")
    assert gathered.exposed == gathered.seconds
    amount = 4 * BATCH.sequence_length * 2 * MODEL.key_value_width * 2
    micro_batches = BATCH.samples // (8 * 4)
    assert gathered.sent == pytest.approx(2 * MODEL.layers * micro_batches * amount / 2 * 3 / 4)
    more = MODEL.attention_flops_per_token(2048) / MODEL.flops_per_token(2048)
    assert time.compute == pytest.approx(whole.compute * (1 + more))


def test_shards_span_the_slices_of_sequences() -> None:
    sliced = step(Grid("fsdp", 1, 1, 8, 1, context=4), 4)
    parameters = next(part for part in sliced.traffic if part.purpose == "parameters")
    assert parameters.sent == pytest.approx(step(FSDP, 2).traffic[0].sent * 2)


def test_stages_are_neighbours_and_copies_are_not() -> None:
    links = {part.purpose: part.link for part in step(Grid("ddp", 1, 8, 1, 4)).traffic}
    assert links["gradients"] == "network"


def test_a_pipeline_idles_less_the_more_micro_batches_there_are() -> None:
    few, many = step(PIPELINE, 2), step(PIPELINE, 1)
    assert few.bubble == pytest.approx(few.compute * 3 / 4)
    assert many.bubble == pytest.approx(many.compute * 3 / 8)


def test_recomputation_costs_a_forward_pass() -> None:
    assert step(DDP, checkpointing="full").compute == pytest.approx(step(DDP).compute * 4 / 3)


def test_a_faster_network_only_shortens_what_is_waited_for() -> None:
    slow = estimate(MODEL, Layout(FSDP, 1, "none"), BATCH, replace(MACHINES, network_bandwidth=1e9))
    fast = step(FSDP)
    assert slow.exposed > fast.exposed
    assert slow.compute == fast.compute


def test_utilisation_is_of_the_models_operations_not_of_the_recomputed_ones() -> None:
    none, full = step(DDP), step(DDP, checkpointing="full")
    assert none.model_flops == full.model_flops
    assert full.utilisation(MACHINES) < none.utilisation(MACHINES) < 0.64


def test_one_machine_uses_no_network() -> None:
    alone = cluster(GPUS["a100-80"], 1)
    for grid in (Grid("ddp", 1, 1, 1, 8), Grid("fsdp", 1, 1, 8, 1), Grid("ddp", 2, 4, 1, 1)):
        assert estimate(MODEL, Layout(grid, 1, "none"), BATCH, alone).sent("network") == 0


def test_a_pipeline_runs_a_multiple_of_its_stages() -> None:
    deep, alone = cluster(GPUS["a100-80"], 2), Batch(24, 2048)
    layout, full = Layout(Grid("ddp", 1, 16, 1, 1), 1, "none"), Batch(32, 2048)
    assert (
        estimate(MODEL, layout, alone, deep).compute == estimate(MODEL, layout, full, deep).compute
    )


def sends(grid: Grid, nodes: int = 2) -> Traffic:
    """What the stages of a pipeline send each other."""
    machines = cluster(GPUS["a100-80"], nodes)
    time = estimate(MODEL, Layout(grid, 1, "none"), BATCH, machines)
    return next(part for part in time.traffic if part.kind == "send")


def test_stages_within_a_machine_use_no_network() -> None:
    assert sends(Grid("ddp", 1, 4, 1, 4)).link == "local"
    assert sends(Grid("ddp", 2, 4, 1, 2)).link == "local"
    assert sends(Grid("ddp", 2, 8, 1, 1)).link == "network"


def test_stages_of_two_machines_share_its_network_with_the_ranks_that_send_at_once() -> None:
    deep, wide = sends(Grid("ddp", 1, 16, 1, 1)), sends(Grid("fsdp", 1, 2, 8, 1))
    assert deep.link == wide.link == "network"
    once = [part.seconds / part.sent for part in (deep, wide)]
    assert once[1] / once[0] == pytest.approx(8, rel=0.05)  # hops have latencies


def test_no_rank_sends_faster_than_its_bus() -> None:
    fast = cluster(GPUS["l40s"], 2, network_gigabits=6400)
    time = estimate(MODEL, Layout(Grid("fsdp", 1, 1, 16, 1), 1, "none"), BATCH, fast)
    bus = GPUS["l40s"].local_bandwidth * fast.efficiency.local.value
    assert all(part.sent / part.seconds <= bus for part in time.traffic)
