"""Draws docs/pictures/*.png from the recorded history: one picture of each dashboard.

python -m demo.pictures [HISTORY]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from demo.dashboard import DASHBOARDS, output
from demo.history import open_metrics, read, replay
from demo.picture.__main__ import picture
from demo.picture.data import Source
from demo.promql import Server, Window
from demo.recording import FILE, LACKED

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
PAGES = ROOT / "build/dashboards"
"""The HTML pages that the pictures show."""
SCRAPE_SECONDS = 5.0
"""On a busy machine, no step ends in some seconds."""
VARIABLES = {
    "fleet": {"namespace": ".*"},
    "job": {"namespace": "research", "trainingjob": "gpt"},
    "operator": {},
}
"""What is chosen in each dashboard."""


def source_of(server: Server, window: Window, name: str) -> Source:
    """Where the picture of a dashboard comes from."""
    return Source(server, window, VARIABLES[name], SCRAPE_SECONDS, LACKED)


@click.command()
@click.argument("history", type=click.Path(exists=True, path_type=Path), default=FILE)
def main(history: Path) -> None:
    """Draw each dashboard with what HISTORY holds."""
    recorded = read(history)
    PAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        monitor = replay(open_metrics(recorded), Path(folder))
        try:
            for name in DASHBOARDS:
                source = source_of(monitor.server, recorded.window, name)
                picture(json.loads(output(name).read_text()), source, PAGES / f"{name}.png")
                (PICTURES / f"{name}.png").write_bytes((PAGES / f"{name}.png").read_bytes())
                print(PICTURES / f"{name}.png", flush=True)
        finally:
            monitor.stop()


if __name__ == "__main__":
    main()
