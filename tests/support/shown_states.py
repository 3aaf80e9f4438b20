"""Runs whose ranks write their whole state (`rank_faults.show_state`), and what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.ranks import Template, generation, succeeded, train_config


def state(folder: Path, name: str = "final") -> Any:
    """The whole state that a run wrote to `folder`: `restored` or `final`."""
    return torch.load(folder / f"{name}.pt")


def chained(
    template: Template,
    folder: Path,
    layouts: list[tuple[int, dict[str, Any]]],
    steps: int,
    **sections: Any,
) -> list[float | None]:
    """Run one generation of `steps` steps for each layout (world size, parallelism), in turn.

    Returns the losses of all steps. The states of generation n are in the folder `n` of `folder`.
    """
    losses: list[float | None] = []
    training = {**sections.pop("training", {}), "steps": steps * len(layouts)}
    for number, (world_size, parallelism) in enumerate(layouts, start=1):
        states = folder / str(number)
        states.mkdir(parents=True)
        record = generation(
            folder / "job",
            world_size,
            train_config(parallelism=parallelism, training=training, **sections),
            number=GenerationNumber(1, number),
        )
        outcomes = template.run(
            record,
            entry="tests.support.rank_faults:show_state",
            options={"folder": str(states)},
            decisions={steps * number: Decision.LEAVE} if number < len(layouts) else {},
        )
        succeeded(outcomes)
        losses += outcomes[0].losses
    return losses
