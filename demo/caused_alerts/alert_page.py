"""The page docs/runbooks/fired-alerts.md, from what was seen of each alert. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from demo.caused_alerts.causes import CAUSES, Cause
from demo.caused_alerts.sighting import Sighting, problems
from demo.ten_faults.page_parts import OLDER, in_seconds, overview, transcript, wrapped
from demo.ten_faults.scene import FACTOR

HEAD = f"""\
# Alerts, and what caused them

Each [alert of the chart](README.md) but the one about GPUs has fired on a cluster, from a real
cause. [Ten faults](../tasks/ten-faults.md) shows ten of them, this page the other nine.

`make alerts` writes this page, and needs root. The command installs the chart on a new cluster of
three nodes, with its [monitors, rules and dashboards](../tasks/monitoring.md). A real Prometheus
evaluates the installed rules once a second and sends what fires to a real Alertmanager. All that
the rules say of time is divided by {FACTOR}: an hour is a minute. A job `loop` trains by a
[custom loop](../tasks/custom-loop.md), which fails on demand: by a file beside its checkpoints.

The command fails unless each alert is quiet before its cause, arrives in Alertmanager with the
labels and the runbook below, and ends after its cause is gone. "Fires after" is from the cause on,
"ends after" from the moment on in which somebody acts. Two cores run all three nodes and the
commands, beside other work.
"""
BY_ITSELF = "by itself"
COLUMNS = ("alert", "severity", "fires after", "ends after")


def page(found: Mapping[str, Sighting]) -> str:
    """The whole page; it names the alerts that were not caused."""
    tried = [cause for cause in CAUSES if cause.slug in found]
    left = [cause.alert for cause in CAUSES if cause.slug not in found]
    rows = [_row(cause, found[cause.slug]) for cause in tried]
    sections = [_section(cause, found[cause.slug]) for cause in tried]
    return "\n".join([HEAD, overview(COLUMNS, rows, "caused", left), "", "\n".join(sections)])


def _row(cause: Cause, seen: Sighting) -> tuple[str, ...]:
    ended = in_seconds(seen.ended_after) if seen.lasted else BY_ITSELF
    return (cause.alert, cause.awaited.labels["severity"], in_seconds(seen.fired_after), ended)


def _section(cause: Cause, seen: Sighting) -> str:
    name = cause.alert
    parts = [
        f"## {name}",
        wrapped(cause.done),
        wrapped(f"[The alert]({name}.md) fires after {in_seconds(seen.fired_after)}:"),
        _alert(seen),
        transcript(cause.job, seen.look),
        wrapped(f"**Then**: {cause.acted} {_end(seen)}"),
    ]
    if wrong := problems(cause.awaited, seen):
        parts.append(wrapped(f"**Not as it should be**: {'; '.join(wrong)}. {OLDER}"))
    return "\n\n".join(parts) + "\n"


def _alert(seen: Sighting) -> str:
    labels = "\n".join(f"{name}: {value}" for name, value in sorted(seen.labels.items()))
    return f"```text\n{seen.summary}\n{labels}\n{seen.runbook_url}\n```"


def _end(seen: Sighting) -> str:
    if not seen.lasted:
        return "The alert ended before that."
    if seen.ended_after is None:
        return "The alert does not end."
    return f"The alert ends {in_seconds(seen.ended_after)} after that."
