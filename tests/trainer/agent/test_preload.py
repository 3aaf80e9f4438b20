"""What the template preloads: all that a first step imports, and nothing that prevents a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import Template, generation, succeeded, train_config

CHECK_TEMPLATE = """
import os, sys
from regroup_trainer.agent.template import preload
preload("regroup_trainer.rank.rank_process")
import torch
assert len(os.listdir("/proc/self/task")) == 1, os.listdir("/proc/self/task")
assert not torch.cuda.is_initialized()
"""


def test_a_warm_process_has_one_thread_and_no_cuda() -> None:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    subprocess.run(
        [sys.executable, "-c", CHECK_TEMPLATE],
        check=True,
        env={**os.environ, **threads},
        timeout=120,
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nothing_is_imported_between_the_fork_and_the_end(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    config = train_config(
        parallelism={"strategy": strategy}, training={"steps": 2}, evaluation={"every_steps": 1}
    )
    outcomes = template.run(
        generation(tmp_path, 2, config), entry="tests.support.rank_faults:list_imports"
    )
    succeeded(outcomes)
    assert {outcome.stderr.splitlines()[-1] for outcome in outcomes} == {"imported: []"}


def test_a_rank_reads_no_metadata_of_packages(template: Template, tmp_path: Path) -> None:
    outcomes = template.run(
        generation(tmp_path, 2, train_config(training={"steps": 2})),
        entry="tests.support.rank_faults:list_metadata_read",
    )
    succeeded(outcomes)
    assert {outcome.stderr.splitlines()[-1] for outcome in outcomes} == {"metadata: []"}
