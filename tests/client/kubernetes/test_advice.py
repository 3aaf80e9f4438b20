"""Each reason has its advice, and says of healing what the page says."""

from __future__ import annotations

import re

import pytest

from regroup.kubernetes.advice import HEALS, advice
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.kube_api import ROOT

PAGE = (ROOT / "docs/concepts/waiting.md").read_text()
HEADINGS = {
    "Somebody has to act": {"no"},
    "Look closer when it lasts longer than a minute": {"maybe"},
    "It ends by itself": {"yes"},
}
ACTS_WHILE_IT_MAY_HEAL = {"ContainerCreating", "WorkerUnresponsive"}
"""Somebody has to act, or the operator does: the page says that it goes on by itself."""
TRIED_AGAIN_AND_AGAIN = {"InternalError", "BackOff"}
"""The next try mostly meets the same error."""


def test_healing_is_as_under_the_headings_of_the_page() -> None:
    listed: dict[str, set[str]] = {}
    for section in PAGE.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        for name in re.findall(r"^- `(\w+)`:", text, re.MULTILINE):
            listed[name] = HEADINGS[title]
    listed |= {name: {"maybe"} for name in ACTS_WHILE_IT_MAY_HEAL}
    listed |= {name: {"seldom"} for name in TRIED_AGAIN_AND_AGAIN}
    assert {r.name: {advice(r.name, "gpt").heals} for r in WaitingReason} == listed


def test_what_takes_longer_than_a_minute_is_not_said_to_heal_within_one() -> None:
    said = {name: HEALS[advice(name, "gpt").heals] for name in ("NoProgress", "InternalError")}
    assert said["NoProgress"].startswith("often, but only once all ranks begin anew")
    assert said["InternalError"].startswith("seldom")


def test_the_name_of_the_job_stands_in_commands() -> None:
    assert advice("Suspended", "gpt").what_to_do.endswith("kubectl trainingjob resume gpt")


def test_a_claim_that_is_being_deleted_is_not_let_go_with_its_volume() -> None:
    todo = advice("ClaimMissing", "gpt").what_to_do
    assert todo.index("Retain") < todo.index("kubectl trainingjob suspend gpt")


def test_every_verb_that_an_advice_names_exists() -> None:
    from regroup.cli.kubectl_trainingjob import trainingjob

    advised = " ".join(advice(reason.name, "gpt").what_to_do for reason in WaitingReason)
    assert set(re.findall(r"kubectl trainingjob (\w+)", advised)) <= set(trainingjob.commands)


@pytest.mark.parametrize("reason", ["ImageError", "Unschedulable", "QuotaExceeded"])
def test_a_field_that_is_fixed_while_a_job_is_not_suspended_is_named_as_such(reason: str) -> None:
    todo = advice(reason, "gpt").what_to_do
    assert todo.endswith("changes only while the job is suspended: kubectl trainingjob suspend gpt")
    assert "spec." in todo
