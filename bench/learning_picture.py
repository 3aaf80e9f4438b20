"""Draws docs/pictures/learning.png from the curve that bench/learning.py wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.learning import CURVE

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "learning.png"


def draw(curve: dict[str, Any]) -> Figure:
    """Bits per byte over minutes of training; a dashed line for each compressor."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.6), dpi=120, layout="constrained")
        axes = figure.subplots()
        axes.plot(
            curve["trained_megabytes"],
            curve["bits_per_byte"],
            marker="o",
            markersize=3,
            color="tab:blue",
            label="byte GPT, 1M",
        )
        for name, color in (("gzip", "tab:red"), ("xz", "tab:gray")):
            axes.axhline(
                curve[name],
                linestyle="--",
                linewidth=1,
                color=color,
                label=f"{name} {curve[name]:.2f}",
            )
        axes.set_xlabel("MB of text trained on (2 ranks on CPU cores)")
        axes.set_ylabel("bits per byte, held-out")
        axes.set_xlim(left=0)
        axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(json.loads(CURVE.read_text())).savefig(PICTURE)
    print(f"drawn to {PICTURE}")
