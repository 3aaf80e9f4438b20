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
from matplotlib.figure import Figure

from bench.harness import RESULTS
from bench.recovery import COURSE

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "recovery.png"


def draw(course: dict[str, Any]) -> Figure:
    """Steps over seconds, 0 being the loss of power; what happened between."""
    detect, down = course["detect_seconds"], course["down_seconds"]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.2), dpi=120, layout="constrained")
        axes = figure.subplots()
        for number, (name, points) in enumerate(generations(course["steps"])):
            seconds, steps = [point[0] for point in points], [point[1] for point in points]
            axes.plot(seconds, steps, ".", markersize=4, color=f"C{number % 10}", label=name)
        axes.axvspan(0.0, detect, color="tab:red", alpha=0.12, linewidth=0)
        axes.axvspan(detect, down, color="tab:green", alpha=0.4, linewidth=0)
        notes = (
            "rank 0's node lost its power at 0 s",
            f"no contact, noticed after {detect:.2f} s",
            f"next step after {down:.2f} s, lost steps: {course['lost_steps']:.0f}",
        )
        axes.annotate(
            "\n\n".join(notes),
            (detect / 2, 0.96),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
        )
        axes.set_xlabel("seconds")
        axes.set_ylabel("committed step")
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(0.72, 0.0))
    return figure


def generations(steps: list[list[Any]]) -> list[tuple[str, list[list[Any]]]]:
    """The steps by generation: its name, and [seconds, step, generation] of each."""
    ends = [index for index, (one, other) in enumerate(pairwise(steps), 1) if one[2] != other[2]]
    parts = [steps[start:end] for start, end in pairwise([0, *ends, len(steps)])]
    return [(f"generation {part[0][2]}", part) for part in parts]


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    draw(json.loads((folder / COURSE).read_text())).savefig(PICTURE)
    print(f"drawn to {PICTURE}")
