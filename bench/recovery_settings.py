"""What all subjects of the recovery benchmark have in common. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.protocol.config import ModelConfig

PYTHON_PATH = os.pathsep.join(
    filter(None, (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")))
)
"""Where `bench` can be imported from, and what the caller has besides: peers that are not in this
environment.
"""

MODEL = ModelConfig(preset="tiny")
GLOBAL_BATCH = 12
"""Samples of a step, shared by three ranks or two."""
MICRO_BATCH = 6
SEQUENCE_LENGTH = 64
VOCABULARY = 256
SAMPLES = 2**16
SAVE_EVERY = 20
"""Steps between two checkpoints."""
SNAPSHOT_EVERY = 10
"""Steps between two snapshots in memory, of the subjects that take them."""
WORKERS, LEAST_WORKERS = 3, 2
"""One rank each."""
HEARTBEAT_SECONDS, LOST_SECONDS = 0.5, 2.0
"""Regroup's detector of lost workers, as it is by default. The detectors of tuned peers get the
same time. Only torchrun's rendezvous keeps its 3 s: with 2 s, no agent joined a generation in four
runs of `join`.
"""
REPLACE_SECONDS = 1.0
"""A dead worker's or control plane's replacement starts so much later, as a pod would."""
REPLACE_NODE_SECONDS = 5.0
"""The workers of a node that was lost silently are replaced so much later, on another node."""
