"""Draws the Job dashboard with the data of a Prometheus.

python -m demo.picture URL NAMESPACE JOB START END PICTURE
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from demo.dashboard import output
from demo.picture.browser import photograph
from demo.picture.data import Source
from demo.picture.page import WIDTH, page
from demo.promql import Server, Window


def picture(board: dict[str, Any], source: Source, target: Path) -> None:
    """Draw a dashboard into `target` (a PNG). The HTML page that it shows is written beside it.

    Raises DemoError that names a query without data.
    """
    drawn, height = page(board, source)
    written = target.with_suffix(".html")
    written.write_text(drawn)
    photograph(written.resolve(), target.resolve(), WIDTH, height)


@click.command()
@click.argument("url")
@click.argument("namespace")
@click.argument("job")
@click.argument("start", type=float)
@click.argument("end", type=float)
@click.argument("target", type=click.Path(path_type=Path))
def main(url: str, namespace: str, job: str, start: float, end: float, target: Path) -> None:
    """Draw the dashboard of a job between two times."""
    variables = {"namespace": namespace, "trainingjob": job}
    board = json.loads(output("job").read_text())
    picture(board, Source(Server(url), Window.of(start, end), variables), target)


if __name__ == "__main__":
    main()
