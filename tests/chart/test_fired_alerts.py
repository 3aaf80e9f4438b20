"""Every alert of the chart reaches a real Alertmanager through a real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from demo.fired_alerts import ALERTS, fire
from tests.support.alert_courses import COURSES

RULES = {
    rule["alert"]: rule
    for file in ALERTS.glob("*.yaml")
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
}


@pytest.mark.long
def test_alertmanager_receives_each_alert_with_labels_and_runbook(tmp_path: Path) -> None:
    received = fire(tmp_path, lambda _name, _arrival: None)
    assert set(received) == set(COURSES)
    for name, arrival in received.items():
        rule = RULES[name]
        assert rule["labels"].items() <= arrival.labels.items()
        assert arrival.annotations["runbook_url"] == rule["annotations"]["runbook_url"]
        assert "<" not in "".join(arrival.annotations.values()), "a template failed"
        if "trainingjob" in rule["annotations"]["summary"]:
            assert arrival.labels["trainingjob"].startswith(name.lower())
