"""Draws docs/pictures/recovery.png from the course of a recovery that bench/recovery.py wrote.

`python -m bench.recovery_picture [FOLDER]`; without it, from bench/results.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.harness import RESULTS
from bench.recovery import COURSE

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "recovery.png"


def draw(course: dict[str, Any]) -> Figure:
    """Steps over seconds, 0 being the loss of power; what happened between."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.6), dpi=120, layout="constrained")
        axes = figure.subplots()
        for number, (ranks, points) in enumerate(worlds(course["steps"])):
            seconds, steps = [point[0] for point in points], [point[1] for point in points]
            axes.plot(seconds, steps, ".", markersize=3, color=f"C{number % 10}", label=ranks)
        mark(axes, 0.0, "rank 0's node loses power", "tab:red")
        mark(axes, course["detect_seconds"], f"noticed after {course['detect_seconds']:.2f} s", "tab:gray")
        mark(axes, course["down_seconds"], f"next step after {course['down_seconds']:.2f} s", "tab:green")
        axes.set_xlabel("seconds")
        axes.set_ylabel("committed step")
        axes.legend(frameon=False, loc="lower right")
    return figure


def worlds(steps: list[list[Any]]) -> list[tuple[str, list[list[Any]]]]:
    """The steps by the world that committed them: its name, and [seconds, step, world] of each."""
    ends = [index for index, (one, other) in enumerate(pairwise(steps), 1) if one[2] != other[2]]
    parts = [steps[start:end] for start, end in pairwise([0, *ends, len(steps)])]
    return [(f"generation {part[0][2]}", part) for part in parts]


def mark(axes: Axes, seconds: float, text: str, color: str) -> None:
    """A line at a moment, and what happened then."""
    axes.axvline(seconds, linestyle="--", linewidth=1, color=color)
    axes.annotate(
        text,
        (seconds, 0.98),
        xycoords=("data", "axes fraction"),
        rotation=90,
        va="top",
        ha="right",
        fontsize=8,
        color=color,
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    draw(json.loads((folder / COURSE).read_text())).savefig(PICTURE)
    print(f"drawn to {PICTURE}")
