"""What is recommended, and why."""

from __future__ import annotations

import pytest

from regroup.planning import memory_estimate
from regroup.planning.choice import MODEL_ERROR, Candidate, Question, examine, fewest_nodes, plan
from regroup.planning.hardware import GPUS, cluster
from regroup.planning.layouts import Batch, Grid, Layout
from regroup.planning.transformer import of_model, of_parameters
from regroup_trainer.protocol.config import ModelConfig

BATCH = Batch(512, 2048)
FAST_AND_SLOW = ("pp 16 x tp 4", "hsdp 2x32")


def question(parameters: float, gpu: str = "a100-80", nodes: int = 8) -> Question:
    return Question(of_parameters(parameters, 50257), BATCH, cluster(GPUS[gpu], nodes))


def by_name(candidates: tuple[Candidate, ...], name: str) -> Candidate:
    return next(candidate for candidate in candidates if candidate.layout.grid.name == name)


@pytest.mark.parametrize("gpu", ["a100-40", "a100-80"])
def test_a_hundred_billion_parameters_fit_64_a100_only_when_layers_or_parameters_are_shared(
    gpu: str,
) -> None:
    result = plan(question(100e9, gpu))
    assert not by_name(result.candidates, "ddp 64").fits
    assert not by_name(result.candidates, "zero 64").fits
    assert result.recommended
    assert result.recommended.memory.total <= memory_estimate.usable(GPUS[gpu])
    assert "plain ddp would need" in result.reason


def test_a_small_model_is_simply_replicated() -> None:
    result = plan(question(124e6, nodes=1))
    assert result.recommended
    assert result.recommended.layout.grid.name == "ddp 8"


def test_what_is_refused_is_not_recommended_though_it_fits() -> None:
    def only_sharded(layout: Layout) -> str:
        return "" if layout.grid.kinds == {"fsdp"} else "not today"

    result = plan(question(1e9), only_sharded)
    assert result.recommended
    assert result.recommended.layout.grid.name == "fsdp 64"


def test_nothing_fits_shows_how_much_is_missing() -> None:
    result = plan(question(100e9, "l40s", nodes=1))
    assert result.recommended is None
    assert result.reason.startswith("nothing fits: the smallest")
    assert "times as many devices" in result.reason


def test_every_recommended_micro_batch_is_within_the_ranks_share() -> None:
    for parameters in (1e8, 1e9, 1e10, 1e11):
        result = plan(question(parameters))
        assert result.recommended
        layout = result.recommended.layout
        assert layout.micro_batch * layout.grid.data <= BATCH.samples


def test_a_lead_inside_the_error_is_reported_and_the_simpler_layout_recommended() -> None:
    result = plan(question(13e9))
    chosen, fastest = result.recommended, result.candidates[0]
    assert chosen
    assert chosen.layout.grid.complexity <= fastest.layout.grid.complexity
    assert chosen.time.total <= fastest.time.total * (1 + MODEL_ERROR)
    assert f"less than the error of the estimate ({MODEL_ERROR:.0%})" in result.reason


def test_a_lead_outside_the_error_is_a_lead() -> None:
    def two(layout: Layout) -> str:
        return "" if layout.grid.name in FAST_AND_SLOW else "not today"

    result = plan(question(100e9), two)
    assert result.recommended
    assert result.recommended.layout.grid.name == FAST_AND_SLOW[0]
    assert f"the next best, {FAST_AND_SLOW[1]}, is" in result.reason
    assert "error" not in result.reason


def test_long_sequences_are_sliced_when_a_whole_one_does_not_fit() -> None:
    model = of_model(ModelConfig.model_validate({"name": "llama", "preset": "8b"}), 128256)
    asked = Question(model, Batch(8, 2**18), cluster(GPUS["h100-80"], 2))
    sliced = [c for c in plan(asked).candidates if "cp" in c.layout.grid.kinds]
    whole = next(c for c in plan(asked).candidates if c.layout.grid.kinds == {"fsdp"})
    assert min(c.memory.total for c in sliced) < whole.memory.total


def test_machines_may_be_lost_as_long_as_the_shards_fit_on_the_others() -> None:
    asked = question(13e9)
    sharded = examine(asked, Layout(Grid("fsdp", 1, 1, 64, 1), 1, "full"))
    replicated = examine(asked, Layout(Grid("hsdp", 1, 1, 16, 4), 1, "full"))
    larger = question(40e9)
    spread = examine(larger, sharded.layout)
    assert 1 == fewest_nodes(asked, sharded, 1) < fewest_nodes(larger, spread, 1) < 8
    assert fewest_nodes(asked, replicated, 2) == 2


@pytest.mark.parametrize(
    ("name", "preset", "parameters"),
    [
        ("gpt", "124m", 124e6),
        ("gpt", "1.3b", 1.3e9),
        ("llama", "8b", 8.03e9),
        ("llama", "70b", 70.55e9),
    ],
)
def test_presets_have_their_published_sizes(name: str, preset: str, parameters: float) -> None:
    vocabulary = 50257 if name == "gpt" else 128256
    model = of_model(ModelConfig.model_validate({"name": name, "preset": preset}), vocabulary)
    assert model.parameters == pytest.approx(parameters, rel=0.02)


@pytest.mark.parametrize("parameters", [1e6, 1e8, 1e9, 1e10, 1e11, 1e12])
def test_a_number_of_parameters_becomes_a_shape_of_about_that_size(parameters: float) -> None:
    model = of_parameters(parameters, 256)
    assert model.width == 128 * model.heads
    assert 0.4 * parameters <= model.parameters <= 2 * parameters
    if parameters >= 1e10:
        assert model.parameters == pytest.approx(parameters, rel=0.1)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (5, "3 of 8 data-parallel ranks have no sample and only repeat others"),
        (12, "25% of the samples computed are padding: a global batch of 16 takes as long"),
        (16, ""),
    ],
)
def test_ranks_that_idle_are_counted(samples: int, sentence: str) -> None:
    def copies(layout: Layout) -> str:
        return "" if layout.grid.name == "ddp 8" else "not today"

    small = of_parameters(1e8, 50257)
    result = plan(Question(small, Batch(samples, 512), cluster(GPUS["a100-80"], 1)), copies)
    assert sentence in result.reason
    assert bool(sentence) == ("padding" in result.reason or "no sample" in result.reason)
