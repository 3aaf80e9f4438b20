"""Each alert fires when it should and is quiet otherwise, by promtool's evaluation of its rule. Its
texts are whole, and a runbook page belongs to it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from regroup_operator.render.injection import agent_command
from regroup_trainer.agent import stacks
from tests.support.alert_courses import COURSES, Course, Fires
from tests.support.promtool import promtool, run_rule_tests

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "charts/regroup/alerts").glob("*.yaml"))
RUNBOOKS = ROOT / "docs/runbooks"


def rules() -> dict[str, dict[str, Any]]:
    """The rules of all files by their names."""
    found = [
        rule
        for file in FILES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len(found) == len({rule["alert"] for rule in found})
    return {rule["alert"]: rule for rule in found}


RULES = rules()
CRITICAL = [name for name, rule in RULES.items() if rule["labels"]["severity"] == "critical"]
_STACKS = shlex.join([*agent_command("python", injected=False)[:-1], stacks.__name__])
WITHOUT_THE_PLUGIN = {
    "why": "kubectl -n NAMESPACE describe trainingjob NAME",
    "debug": f"kubectl -n NAMESPACE exec POD -- {_STACKS}",
}
"""Verb of the plugin -> what somebody types who does not have it."""


def filled(text: str, fires: Fires) -> str:
    """A text of an alert as somebody reads it who is woken by it."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: fires.labels[found[1]], text)
    with_query = re.sub(r"\{\{ with .*?\{\{ end \}\}", fires.shown, text, flags=re.DOTALL)
    return re.sub(r"\{\{ .*? \}\}", fires.shown, with_query)


def expected(alert: str, course: Course) -> list[dict[str, Any]]:
    """The alerts that promtool is to find."""
    if not isinstance(course, Fires):
        return []
    texts = {name: filled(text, course) for name, text in RULES[alert]["annotations"].items()}
    return [{"exp_labels": {**RULES[alert]["labels"], **course.labels}, "exp_annotations": texts}]


def promtool_test(alert: str, course: Course) -> dict[str, Any]:
    """A course as a test of promtool."""
    asked = {"eval_time": f"{course.minute}m", "alertname": alert}
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in course.given.items()],
        "alert_rule_test": [{**asked, "exp_alerts": expected(alert, course)}],
    }


@pytest.mark.parametrize("alert", COURSES)
def test_it_fires_when_it_should_and_is_quiet_otherwise(alert: str, tmp_path: Path) -> None:
    firing = [isinstance(course, Fires) for course in COURSES[alert]]
    assert any(firing)
    assert not all(firing)
    cases = {
        "rule_files": [str(file) for file in FILES],
        "evaluation_interval": "1m",
        "tests": [promtool_test(alert, course) for course in COURSES[alert]],
    }
    run_rule_tests(cases, tmp_path)


def test_promtool_finds_no_fault_with_the_rules() -> None:
    promtool("check", "rules", *FILES)


def test_every_alert_has_its_courses() -> None:
    assert set(RULES) == set(COURSES)


def test_the_index_of_runbooks_lists_every_alert() -> None:
    index = (RUNBOOKS / "README.md").read_text()
    listed = re.findall(r"^- \[(\w+)\]\(\1\.md\), (\w+):", index, re.M)
    assert dict(listed) == {name: rule["labels"]["severity"] for name, rule in RULES.items()}


@pytest.mark.parametrize("alert", RULES)
def test_it_says_what_is_wrong_whether_it_heals_itself_and_what_to_do(alert: str) -> None:
    rule = RULES[alert]
    texts = rule["annotations"]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert len(texts["summary"]) <= 140
    assert re.search(r"^Heals itself\? .*^Do: ", texts["description"], re.M | re.S)
    page = RUNBOOKS / texts["runbook_url"].rpartition("/docs/runbooks/")[2]
    assert page.name == f"{alert}.md"
    sections = re.findall(r"^## (.+)$", page.read_text(), re.M)
    assert sections == ["What it means", "What to look at", "What to do"]


@pytest.mark.parametrize("alert", CRITICAL)
def test_who_is_woken_by_a_critical_alert_needs_no_plugin(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text()
    verbs = re.findall(r"^kubectl trainingjob -n NAMESPACE (\w+)", page, re.M)
    assert "kubectl" in page
    assert [verb for verb in verbs if WITHOUT_THE_PLUGIN[verb] not in page] == []
