"""The SVG elements that all panels use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from demo.picture.units import time_ticks
from demo.promql import Window

GRID = "rgba(204,204,220,0.07)"
MUTED = "rgba(204,204,220,0.65)"
FONT = 12


@dataclass(frozen=True)
class Box:
    """The area inside the axes, in pixels of the panel."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, time: float, window: Window) -> float:
        """The x coordinate of a time."""
        return self.left + self.width * (time - window.start) / (window.end - window.start)

    def y(self, value: float, low: float, high: float) -> float:
        """The y coordinate of a value."""
        return self.bottom - self.height * (value - low) / (high - low)


def width_of(text: str, size: float = FONT) -> float:
    """The approximate width of a text, in pixels."""
    return sum(0.33 if c in " .,:il|'" else 0.62 for c in text) * size


def label(
    x: float, y: float, text: str, anchor: str = "start", color: str = MUTED, size: float = FONT
) -> str:
    """A text with its baseline at y."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}" font-size="{size:g}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, color: str = GRID, dash: str = "") -> str:
    """A thin line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashed}/>'
    )


def time_axis(box: Box, window: Window) -> Iterable[str]:
    """Vertical grid lines and the times below them."""
    for time, shown in time_ticks(window.start, window.end, max(2, int(box.width / 85))):
        x = box.x(time, window)
        yield line(x, box.top, x, box.bottom)
        if x - box.left > 4 and box.left + box.width - x > 24:
            yield label(x, box.bottom + 17, shown, "middle")


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """An SVG drawing of this size, in pixels."""
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
