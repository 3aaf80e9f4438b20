"""The rules of alerts in a shorter time."""

from __future__ import annotations

import yaml

from demo.fired_alerts import ALERTS
from demo.short_rules import shortened

RULES = {
    rule["alert"]: rule
    for file in ALERTS.glob("*.yaml")
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
}


def test_a_rule_is_shortened_wherever_it_speaks_of_time() -> None:
    failing = shortened(RULES["TrainingJobCheckpointFailing"], 100)
    assert failing["for"] == "600ms"
    assert "offset 18000ms" in shortened(RULES["TrainingJobLossSpike"], 100)["expr"]
    assert failing["expr"].count("[18000ms]") == 2
    assert failing["expr"].rstrip().endswith("< 18")
    assert "[864000ms:3000ms]" in shortened(RULES["TrainingJobCheckpointStale"], 100)["expr"]
    assert "> 6\n" in shortened(RULES["TrainingJobRankUnresponsive"], 100)["expr"]
    assert shortened(RULES["TrainingJobInternalError"], 100).get("for") is None
