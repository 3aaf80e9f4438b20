"""What queries of the dashboards answer after a coordinator was replaced, by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo import queries
from tests.support.promtool import run_rule_tests

ASKED = 'namespace="team",trainingjob="gpt"'
LOSSES = 'cause="infrastructure",namespace="team",trainingjob="gpt"'


def series(pod: str, counts: str, sums: str, within_two: str) -> list[dict[str, str]]:
    """What the coordinator in a pod has counted of lost workers, minute by minute; each is found
    within 3 s.
    """
    labels = f'{LOSSES},pod="{pod}"'
    values = {
        f"count{{{labels}}}": counts,
        f"sum{{{labels}}}": sums,
        f'bucket{{{labels},le="2.0"}}': within_two,
        f'bucket{{{labels},le="3.0"}}': counts,
        f'bucket{{{labels},le="+Inf"}}': counts,
    }
    return [
        {"series": f"trainingjob_detection_seconds_{name}", "values": given}
        for name, given in values.items()
    ]


FIRST = series("gpt-c1", "0 0 1 2 3x2 _x30", "0 0 2.5 5 7.5x2 _x30", "0x5 _x30")
"""Three losses, 7.5 s in all; then the coordinator itself is lost."""
SECOND = series("gpt-c2", "_x8 0x4 1x18", "_x8 0x4 0.5x18", "_x8 0x4 1x18")
"""One loss more, which is found in 0.5 s."""
QUANTILE = (
    "round(histogram_quantile(0.5, sum by (le) (increase(trainingjob_detection_seconds_bucket"
    f'{{{ASKED},cause="infrastructure"}}[30m]))), 0.1)'
)


@pytest.mark.parametrize(
    ("expression", "given", "found"),
    [
        (queries.DETECTION, FIRST + SECOND, 2.0),
        (queries.DETECTION, series("gpt-c1", "0x40", "0x40", "0x40"), None),
        (QUANTILE, FIRST + SECOND, 2.3),
    ],
)
def test_times_of_detection_are_those_of_all_coordinators(
    expression: str, given: list[dict[str, str]], found: float | None, tmp_path: Path
) -> None:
    """Each begins at 0. Before any loss there is no time, instead of 0 / 0."""
    asked = expression.replace(queries.JOB, ASKED).replace("$__range", "30m")
    samples = [] if found is None else [{"labels": "{}", "value": found}]
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [{"expr": asked, "eval_time": "28m", "exp_samples": samples}],
    }
    run_rule_tests({"evaluation_interval": "1m", "tests": [test]}, tmp_path)
