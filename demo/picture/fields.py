"""The look of a field (a series, a column). Overrides replace the panel's defaults, as
in Grafana.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMED = {
    "text": "#ccccdc",
    "green": "#73bf69",
    "dark-green": "#37872d",
    "semi-dark-green": "#56a64b",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "dark-red": "#c4162a",
    "blue": "#5794f2",
    "dark-blue": "#1f60c4",
    "purple": "#b877d9",
    "dark-purple": "#8f3bb8",
}
PALETTE = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#705da0",
    "#37872d",
)


@dataclass(frozen=True)
class Field:
    """A field's resolved settings."""

    name: str
    settings: dict[str, Any]
    """unit, decimals, min, max, color, thresholds, mappings, custom."""
    index: int = 0
    """The field's index in its panel. It selects a colour of the palette."""

    @property
    def unit(self) -> str:
        """Grafana's id of the unit."""
        return str(self.settings.get("unit", "none"))

    @property
    def decimals(self) -> int | None:
        """The number of decimals to show. None: automatic."""
        found = self.settings.get("decimals")
        return None if found is None else int(found)

    @property
    def color(self) -> str:
        """The colour of the series, independent of its value, as CSS."""
        scheme = self.settings.get("color", {})
        return (
            css(scheme["fixedColor"])
            if "fixedColor" in scheme
            else PALETTE[self.index % len(PALETTE)]
        )

    def custom(self, name: str, default: Any = None) -> Any:
        """A setting that only this type of panel has."""
        return self.settings.get("custom", {}).get(name, default)

    def mapped(self, value: float) -> tuple[str | None, str]:
        """The text and the colour of a value: from a mapping, else from the thresholds.

        A text of None stands for the number itself.
        """
        for mapping in self.settings.get("mappings", ()):
            hit = mapping["options"].get(f"{value:g}")
            if hit:
                return hit["text"], css(hit["color"])
        return None, self.threshold_color(value)

    def threshold_color(self, value: float) -> str:
        """The colour of the highest threshold that the value reaches. A fixed colour takes
        precedence.
        """
        scheme = self.settings.get("color", {})
        if "fixedColor" in scheme:
            return css(scheme["fixedColor"])
        steps = self.settings.get("thresholds", {}).get("steps", [{"value": None, "color": "text"}])
        reached = [
            step["color"] for step in steps if step["value"] is None or value >= step["value"]
        ]
        return css(reached[-1])


def css(color: str) -> str:
    """A colour of Grafana's palette, or any CSS colour, as CSS."""
    return NAMED.get(color, color)


def resolve(panel: dict[str, Any], name: str, index: int = 0) -> Field:
    """The field `name` of a panel: defaults, then the overrides that match its name."""
    config = panel["fieldConfig"]
    settings: dict[str, Any] = {
        **config["defaults"],
        "custom": dict(config["defaults"].get("custom", {})),
    }
    for override in config.get("overrides", ()):
        if override["matcher"] == {"id": "byName", "options": name}:
            for one in override["properties"]:
                put(settings, one["id"], one.get("value"))
    return Field(name, settings, index)


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set one overridden property. `custom.x` sets `x` in the group `custom`."""
    group, _, name = path.rpartition(".")
    (settings[group] if group else settings)[name] = value
