"""A process of bench/data_resume.py: prints the time that its subject took to resume."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regroup_trainer.data.dataset import Array
from regroup_trainer.data.synthetic import Synthetic, load_synthetic
from regroup_trainer.protocol.config import DataConfig, TrainConfig

BATCH, LENGTH, SEED = 32, 128, 1
MEMORY = 8 * 2**30

Resume = Callable[[int, int], Any]
"""Samples of the epoch, position in it -> the batch that begins there."""


class Source:
    """The samples as map-style datasets have them."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._data = _synthetic(samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Array:
        sample: Array = self._data.read_training(np.array([index])).inputs[0]
        return sample


def regroup() -> Resume:
    """The built-in trainer's loader; its state is the position."""
    from regroup_trainer import data
    from regroup_trainer.parallel.process_group import GenerationGroup
    from regroup_trainer.rank import trainer

    def resume(samples: int, position: int) -> Any:
        config = TrainConfig.model_validate(
            {
                "data": {"source": "synthetic", "samples": samples},
                "training": {
                    "global_batch_size": BATCH,
                    "micro_batch_size": BATCH,
                    "sequence_length": LENGTH,
                },
            }
        )
        dataset = data.load(config, Path())  # of no use to this source
        loader = trainer.build_loader(
            config,
            dataset,
            GenerationGroup(rank=0, size=1, local_rank=0, device=torch.device("cpu")),
        )
        return loader.training(position)

    return resume


def grain() -> Resume:
    """Its lazy dataset, shuffled by index, read ahead as far as ours."""
    import grain

    def resume(samples: int, position: int) -> Any:
        source: Any = Source(samples)
        batches = grain.MapDataset.source(source).shuffle(seed=SEED).batch(BATCH)
        iterator = iter(
            batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
        )
        iterator.set_state({"next_index": position // BATCH})
        return next(iterator)

    return resume


def statefuldataloader(*, shuffle: bool) -> Resume:
    """torchdata's loader. Its state is the one after a first batch with the counters of the
    position.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    def saved_state(position: int) -> dict[str, Any]:
        iterator = iter(
            loader := StatefulDataLoader(Source(10 * BATCH), batch_size=BATCH, shuffle=shuffle)
        )
        next(iterator)
        state: dict[str, Any] = loader.state_dict()
        state["_num_yielded"] = state["_sampler_iter_yielded"] = position // BATCH
        state["_sampler_iter_state"]["samples_yielded"] = position
        if shuffle:
            state["_sampler_iter_state"]["sampler_iter_state"]["yielded"] = position
        return state

    def resume(samples: int, position: int) -> Any:
        loader = StatefulDataLoader(Source(samples), batch_size=BATCH, shuffle=shuffle)
        loader.load_state_dict(saved_state(position))
        return next(iter(loader))

    return resume


SUBJECTS: dict[str, Callable[[], Resume]] = {
    "regroup": regroup,
    "grain": grain,
    "statefuldataloader": lambda: statefuldataloader(shuffle=True),
    "statefuldataloader-in-order": lambda: statefuldataloader(shuffle=False),
}


def main(subject: str, samples: int) -> None:
    """Resume at 90 % of an epoch of so many samples."""
    warnings.simplefilter("ignore")
    resume = SUBJECTS[subject]()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    position = samples * 9 // 10 // BATCH * BATCH
    start = time.perf_counter()
    resume(samples, position)
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
    os._exit(0)  # without waiting for what was read ahead


def _synthetic(samples: int) -> Synthetic:
    return load_synthetic(DataConfig(source="synthetic", samples=samples), LENGTH)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
