"""docs/tasks/ten-faults.md is what today's code would write of the run that it shows, and names
nothing that the code does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from demo.ten_faults.answer import unsaid
from demo.ten_faults.expectations import BY_NAME, FAULTS, Fault
from demo.ten_faults.observation import Look, Observed, problems
from demo.ten_faults.report_page import page
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.kubernetes.advice import advice
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.kube_api import ROOT

PAGE = (ROOT / "docs/tasks/ten-faults.md").read_text()
PICTURE = next(iter(re.findall(r"^!\[.*\]\((.*)\)$", PAGE, re.M)), "")
SECTIONS: Mapping[str, str] = {
    title.lower().replace(" ", "-"): text
    for title, text in re.findall(r"^## ([^\n]+)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}
_TRIED = re.search(r"^The faults were tried in \d+ runs: (.+?)\.\n\n", PAGE, re.M | re.S)
_WHOLE = re.search(r"^All is of one run, of (.+)\.$", PAGE, re.M)
RUNS: Mapping[str, str] = (
    {
        name: run
        for names, run in re.findall(r"(.+?) \((.+?)\)(?:; |$)", " ".join(_TRIED[1].split()))
        for name in names.split(", ")
    }
    if _TRIED
    else {fault.name: _WHOLE[1] for fault in FAULTS if _WHOLE}
)
"""Each fault with its run."""
FORMER = {"a-rank-that-hangs": "Heals: often within a minute; look closer when it lasts longer"}
"""Words that `why` had for a fault and has no more. A section with them is older than that change,
and shows what was not as it should be.
"""
DEFINITION = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
LOOK = re.compile(
    r"^\$ kubectl get .*?\n(.*?)\n\$ kubectl .*?\n(.*?)\nexit code (\d+)$", re.M | re.S
)


def observed(fault: Fault) -> Observed:
    """What the page says was seen of a fault."""
    text = SECTIONS[fault.slug]
    (row,) = re.findall(rf"^\| {fault.name} \| (.+) \|$", PAGE, re.M)
    _, fired, shown, heals, again = row.split(" | ")
    alerts = {str(fault.expected.alert): _number(fired)} if fired != "-" else {}
    alerts |= {name: float(at) for name, at in re.findall(r"(TrainingJob\w+)\s\((\d+)\ss\)", text)}
    height, after = [Look(0.0, why, int(code), line) for line, why, code in LOOK.findall(text)]
    return Observed(
        height,
        after,
        shown_after=_number(shown),
        alerts={name: at for name, at in alerts.items() if at is not None},
        healed=heals == "yes",
        recovered_after=0.0 if fault.expected.ends else _number(again),
        names=dict(re.findall(r"Struck: (\w+) (\w+)\.", text)),
        run=RUNS[fault.name],
    )


def _number(cell: str) -> float | None:
    return None if cell == "never" else float(cell.removesuffix(" s"))


SEEN = {slug: observed(BY_NAME[slug]) for slug in SECTIONS}


def test_the_page_is_what_todays_code_writes_of_that_run() -> None:
    assert page(SEEN, PICTURE) == PAGE
    assert set(SECTIONS) == {fault.slug for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.slug)
def test_what_it_shows_is_what_is_expected_unless_the_product_says_it_otherwise_since(
    fault: Fault,
) -> None:
    seen = SEEN[fault.slug]
    former = FORMER.get(fault.slug)
    is_older = former is not None and former in " ".join(seen.height.why.split())
    found = problems(fault.expected, seen)
    if is_older:
        (problem,) = found
        assert "after `Heals:` while it lasted" in problem
    else:
        assert found == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.slug)
def test_no_fault_is_expected_to_show_what_another_one_shows(fault: Fault) -> None:
    """Nor what the job shows when all is over, where that differs."""
    answer = fault.expected.answer
    names = {"node": "n1", "rank": "1", **SEEN[fault.slug].names}
    for slug, seen in SEEN.items():
        looks = (seen.height, seen.after) if slug != fault.slug else (seen.after,)
        if slug == fault.slug and answer == fault.expected.afterwards:
            continue
        for look in looks:
            assert unsaid(answer, names, look.why), slug


def test_its_alerts_have_runbooks() -> None:
    named = set(re.findall(r"TrainingJob[A-Z]\w+", PAGE))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / f"docs/runbooks/{name}.md").exists()] == []


def test_its_reasons_and_events_are_those_of_the_code() -> None:
    """Events about pods are those of Kubernetes."""
    words = " ".join(PAGE.split())
    reasons = set(re.findall(r"(?:does not train|trains, but): (\w+):", words))
    events = set(re.findall(r"- event (\w+), ", words))
    documented = re.findall(r"^- `(\w+)` \(", (ROOT / "docs/reference/events.md").read_text(), re.M)
    assert len(reasons) > 5
    general = advice("OfAnotherRelease", "gpt")
    assert [reason for reason in reasons if advice(reason, "gpt") == general] == []
    assert events <= {*documented, *WaitingReason.__members__}


def test_its_verbs_and_fields_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    assert set(re.findall(r"kubectl trainingjob ([\w-]+)", words)) <= trainingjob.commands.keys()
    fields = set(re.findall(r"\b((?:spec|status)(?:\.[a-zA-Z]+)+)", words))
    assert len(fields) > 3
    schema = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert [field for field in fields if not _is_in(schema, field.split("."))] == []


def _is_in(schema: Mapping[str, Any], path: list[str]) -> bool:
    for name in path:
        schema = schema.get("items", schema)
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return True
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
    return True
