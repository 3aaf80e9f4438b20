"""Generates the Grafana dashboards of the chart: Fleet, Job and Operator.

python -m demo.dashboard [--check]

`--check` fails when a file in the chart is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from demo import fleet_dashboard, job_dashboard, operator_dashboard

FOLDER = Path(__file__).resolve().parent.parent / "charts/regroup/dashboards"
DASHBOARDS: dict[str, Callable[[], dict[str, Any]]] = {
    "fleet": fleet_dashboard.build,
    "job": job_dashboard.build,
    "operator": operator_dashboard.build,
}


def output(name: str) -> Path:
    """The file of a dashboard."""
    return FOLDER / f"{name}.json"


def text(name: str) -> str:
    """The content of the file of a dashboard."""
    return json.dumps(DASHBOARDS[name](), indent=2, sort_keys=True) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Fail when a file of the chart is out of date.")
def main(check: bool) -> None:
    """Write the dashboards into the chart."""
    for name in DASHBOARDS:
        file, made = output(name), text(name)
        if not check:
            file.write_text(made)
        elif not file.exists() or file.read_text() != made:
            sys.exit(f"{file} is out of date: run python -m demo.dashboard")


if __name__ == "__main__":
    main()
