"""The GPU benchmark runs on a CPU with a tiny model, and its figures mean what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.gpu import QUICK, SUBJECTS, TRAININGS, main
from bench.gpu_job import flops_per_token, peak_flops
from regroup_trainer.protocol.config import PRESETS


@pytest.mark.long
def test_a_quick_run_trains_every_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = replace(TRAININGS[QUICK], steps=100, warm=10)  # a CPU takes long for a step in bf16
    monkeypatch.setitem(TRAININGS, QUICK, shorter)
    done = CliRunner().invoke(main, ["--quick", "--case", QUICK, "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {
        row["subject"]: row["median"] for row in rows if row["metric"] == "trained"
    } == dict.fromkeys(SUBJECTS, 1.0)
    rates = [row["median"] for row in rows if row["metric"] == "tokens_per_second"]
    assert rates
    assert min(rates) > 0


def test_without_a_gpu_only_a_quick_run_is_possible(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--output", str(tmp_path)])
    assert done.exit_code == 2
    assert "use --quick" in done.output


def test_the_operations_of_a_token_are_those_of_the_published_formula() -> None:
    # PaLM's appendix B: 6N + 12LHQT.
    assert (
        flops_per_token(124_000_000, PRESETS["gpt"]["124m"], 1024)
        == 6 * 124e6 + 12 * 12 * 12 * 64 * 1024
    )


def test_the_peak_of_a_device_is_known_by_its_name() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("cpu") is None
