"""What a coordinator asks for, by the size of its job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from regroup_operator.api.settings import Settings
from regroup_operator.render import workload
from regroup_operator.render.coordinator_resources import (
    MIB,
    kept_bytes,
    resources_for,
    training_cores,
)
from regroup_trainer.protocol.ledger import Ledger
from tests.support.kube_api import ROOT
from tests.support.rendering import SETTINGS, make_valid_job

GIVEN = SETTINGS.coordinator_resources


def resources_of(settings: Settings = SETTINGS, **fields: Any) -> Any:
    """Of the coordinator of a job with these fields of its spec, as its pod has them."""
    job = make_valid_job(**fields)
    pod = workload.coordinator_pod(job, settings, workload.desired(job, Ledger()), 1, ())
    return pod["spec"]["containers"][0]["resources"]


def up_to(workers: int) -> dict[str, Any]:
    """A job of three workers that may have so many."""
    return {"elasticPolicy": {"minReplicas": 1, "maxReplicas": workers}}


def measured(metric: str) -> dict[tuple[int, int], float]:
    """Workers and ranks -> what the benchmark has measured last."""
    rows = json.loads(Path(ROOT, "bench/results/coordinator_size.json").read_text())["rows"]
    sizes = {row["case"]: tuple(map(int, row["case"].split("x"))) for row in rows}
    return {
        (workers, workers * ranks): row["max"]
        for row in rows
        if row["metric"] == metric
        for workers, ranks in [sizes[row["case"]]]
    }


def test_the_memory_is_as_measured() -> None:
    peaks = measured("rss_peak_mb")
    assert max(peaks) == (1024, 8192)
    for size, peak in peaks.items():
        assert peak == pytest.approx(kept_bytes(*size) / MIB, rel=0.05)


def test_the_cpu_is_what_training_was_measured_to_take_and_half_as_much_more_at_most() -> None:
    found = measured("training_millicores")
    assert max(found) == (1024, 8192)
    for size, millicores in found.items():
        assert millicores <= 1000 * training_cores(*size) <= 1.5 * millicores


def test_the_page_shows_what_coordinators_ask_for() -> None:
    page = Path(ROOT, "docs/tasks/limits.md").read_text()
    shown = re.findall(r"^\| ([\d,]+) x (\d) \| (\S+m) \| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    assert len(shown) == 8
    for many, each, *amounts in shown:
        workers = int(many.replace(",", ""))
        asked = resources_for(GIVEN, workers, workers * int(each))
        assert amounts == [*asked["requests"].values(), *asked["limits"].values()]


def test_a_small_job_gets_what_the_installation_says() -> None:
    assert resources_of() == GIVEN
    assert resources_for(GIVEN, workers=8, ranks=8) == GIVEN


def test_a_large_job_gets_more() -> None:
    assert resources_for(GIVEN, workers=1024, ranks=8192) == {
        "requests": {"cpu": "191m", "memory": "122Mi"},
        "limits": {"memory": "292Mi"},
    }


@pytest.mark.parametrize("workers", [1, 8, 64, 512, 4096])
def test_more_ranks_never_get_less_and_a_request_is_at_most_its_limit(workers: int) -> None:
    given = {"requests": {"cpu": "20m", "memory": 1}, "limits": {"cpu": "50m", "memory": 1}}

    def amounts(ranks: int) -> tuple[int, ...]:
        found = resources_for(given, workers, workers * ranks)
        texts = [found[kind][name] for kind in given for name in ("cpu", "memory")]
        return tuple(int(text.removesuffix("m").removesuffix("Mi")) for text in texts)

    former: tuple[int, ...] = (0, 0, 0, 0)
    for ranks in (1, 2, 4, 8, 1024):
        cpu, memory, most_cpu, most_memory = now = amounts(ranks)
        assert cpu <= most_cpu
        assert cpu <= 1000
        assert memory <= most_memory
        assert all(map(int.__le__, former, now))
        former = now


def test_workers_that_a_job_may_have_by_itself_count_and_spares_and_all_ranks() -> None:
    few = resources_of()["requests"]["cpu"]
    assert few == "20m"
    assert resources_of(**up_to(100))["requests"]["cpu"] == "55m"
    assert resources_of(**up_to(100), spares=20)["requests"]["cpu"] == "61m"
    assert resources_of(**up_to(100), nprocPerNode=2)["requests"]["cpu"] == "57m"


def test_no_job_counts_for_more_workers_than_the_installation_allows() -> None:
    small = SETTINGS.model_copy(update={"max_workers": 100})
    assert resources_of(small, **up_to(4000)) == resources_of(small, **up_to(100))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"requests": None},
        {"requests": {"memory": "4Gi", "cpu": 2}, "limits": {"memory": "5e9", "cpu": "2500m"}},
        {"requests": {"ephemeral-storage": "1Gi"}, "claims": [{"name": "a"}]},
        {"requests": {"memory": "much", "cpu": True}},
    ],
)
def test_what_is_not_set_or_suffices_or_is_no_amount_stays(given: dict[str, Any]) -> None:
    assert resources_for(given, workers=512, ranks=512) == given


def test_an_installation_may_want_the_same_for_all_jobs() -> None:
    fixed = SETTINGS.model_copy(update={"coordinators_grow": False})
    assert resources_of(fixed, **up_to(4000)) == GIVEN
