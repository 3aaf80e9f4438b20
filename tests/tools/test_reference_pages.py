"""The generated reference: each field of the definition and each verb has its entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.kubernetes.advice import WHILE_TRAINING
from regroup_operator.api.crd import spec_schema, status_schema
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tools.reference_pages import command_page, job_page, reason_page


def fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Section and name of each field of a schema, but for former names."""
    for name, child in schema.get("properties", {}).items():
        if not child.get("description", "").startswith("Deprecated"):
            yield path, name
        suffix = "[]" if "items" in child else ""
        yield from fields(f"{path}.{name}{suffix}", child.get("items", child))


def test_each_field_of_the_definition_is_described() -> None:
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", job_page(), re.M | re.S))
    expected = [*fields("spec", spec_schema()), *fields("status", status_schema())]
    assert len(expected) > 200
    missing = [
        f"{section}.{name}"
        for section, name in expected
        if f"\n- `{name}` (" not in sections.get(section, "")
    ]
    assert not missing


def test_an_entry_says_type_bounds_and_default() -> None:
    page = " ".join(job_page().split())
    assert "- `globalBatchSize` (integer, 1 to 1,048,576, default `24`): Samples per step" in page
    assert "- `precision` (`fp32` or `bf16`, default `fp32`): " in page
    assert "- `layers` (integer, 1 to 1,024, required): " in page


def test_each_reason_is_explained_once_below_whether_it_heals() -> None:
    page = reason_page()
    found = re.findall(r"^- `(\w+)`: ", page, re.M)
    assert sorted(found) == sorted({*WaitingReason.__members__, *WHILE_TRAINING})
    acts, _, itself = page.partition("## Heals: yes")
    assert "`QuotaExceeded`: a quota of the namespace refuses" in acts
    assert "`GatheringWorkers`: there are enough workers" in itself


def test_each_verb_has_its_help_with_examples() -> None:
    page = command_page()
    verbs = [f"kubectl trainingjob {verb}" for verb in trainingjob.commands]
    for name in ("regroup run", "regroup plan", "regroup checkpoint export", *verbs):
        (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert f"Usage: {name}" in section
    assert "/work" not in page
