"""The page docs/tasks/ten-faults.md, from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from demo.ten_faults.expectations import FAULTS, Fault
from demo.ten_faults.observation import Observed, problems
from demo.ten_faults.page_parts import OLDER, in_seconds, overview, transcript, wrapped
from demo.ten_faults.scene import FACTOR
from demo.ten_faults.strikes import SAMPLE

HEAD = f"""\
# Ten faults, and what you see

This page is written by `make faults`, which needs root. The command installs the chart on a new
cluster of three nodes, with its [monitors, rules and dashboards](monitoring.md), runs the sample
`gpt-demo` and breaks it in ten ways, one after another. A real Prometheus evaluates the installed
rules once a second and sends what fires to a real Alertmanager. All that the rules say of time is
divided by {FACTOR}: an hour is a minute.

For each fault the command knows which alerts have to fire, and what `kubectl trainingjob why` has
to say: its first sentence, how the fault heals, and what to do. It fails where they differ, and
each verdict here is its own; `...` stands for what differs from run to run. Times are from the
fault on, but for "trains again" where somebody has to act: from then on. Two cores run all three
nodes and the commands, beside other work; times include that of the commands themselves, and your
cluster is faster.
"""
COLUMNS = ("fault", "alert", "fires after", "`why` says it after", "heals itself", "trains again")


def page(found: Mapping[str, Observed], picture: str = "") -> str:
    """The whole page; it names the faults that were not tried, and the runs. `picture` is where the
    picture of the run is, from the page on; empty where there is none. It is shown where all faults
    are of that run.
    """
    tried = [fault for fault in FAULTS if fault.slug in found]
    left = [fault.name for fault in FAULTS if fault.slug not in found]
    rows = [_row(fault, found[fault.slug]) for fault in tried]
    sections = [_section(fault, found[fault.slug]) for fault in tried]
    runs = runs_of(found)
    shown = [_picture(picture)] if picture and is_whole(found) else []
    return "\n".join(
        [HEAD, _runs(runs), overview(COLUMNS, rows, "tried", left), "", *shown, "\n".join(sections)]
    )


def runs_of(found: Mapping[str, Observed]) -> dict[str, list[str]]:
    """Each run with the names of its faults."""
    runs: dict[str, list[str]] = {}
    for fault in FAULTS:
        if fault.slug in found:
            runs.setdefault(found[fault.slug].run, []).append(fault.name)
    return runs


def is_whole(found: Mapping[str, Observed]) -> bool:
    """Whether one run has tried all faults."""
    return len(runs_of(found)) == 1 and len(found) == len(FAULTS)


def _runs(runs: Mapping[str, list[str]]) -> str:
    if len(runs) <= 1:
        return "".join(f"All is of one run, of {run}.\n" for run in runs)
    each = "; ".join(f"{', '.join(names)} ({run})" for run, names in runs.items())
    return wrapped(f"The faults were tried in {len(runs)} runs: {each}.") + "\n"


def _picture(where: str) -> str:
    text = f"The dashboard Job of `{SAMPLE}` over the whole run:"
    return f"{text}\n\n![The dashboard Job of {SAMPLE} over the whole run]({where})\n"


def _row(fault: Fault, seen: Observed) -> tuple[str, ...]:
    alert = fault.expected.alert
    return (
        fault.name,
        alert.removeprefix("TrainingJob") if alert else "none",
        in_seconds(seen.alerts.get(alert)) if alert else "-",
        in_seconds(seen.shown_after),
        "yes" if seen.healed else "no",
        "no, it has failed" if fault.expected.ends else in_seconds(seen.recovered_after),
    )


def _section(fault: Fault, seen: Observed) -> str:
    parts = [
        f"## {fault.name[0].upper()}{fault.name[1:]}",
        wrapped(" ".join([fault.done, *_struck(seen)])),
        wrapped(f"**Alert**: {_alert(fault, seen)}"),
        transcript(fault.job, seen.height),
        wrapped(f"**Then**: {fault.acted} {_end(fault, seen)}"),
        transcript(fault.job, seen.after),
    ]
    parts.append(wrapped(f"**Verdict**: {_verdict(fault, seen)}"))
    return "\n\n".join(parts) + "\n"


def _struck(seen: Observed) -> list[str]:
    """What was struck, where only the run has decided it."""
    return [f"Struck: {kind} {name}." for kind, name in seen.names.items()]


def _verdict(fault: Fault, seen: Observed) -> str:
    if wrong := problems(fault.expected, seen):
        return f"not as it should be: {'; '.join(wrong)}. {OLDER}"
    answer = fault.expected.answer.filled(seen.names)
    awaited = [f"the first sentence `{answer.sentence}`"]
    if answer.heals:
        awaited += [f"`Heals: {answer.heals}`", f"`Do: {answer.todo}`"]
    awaited += (f"as evidence `{one}`" for one in answer.evidence)
    return f"right and enough. Awaited: {', '.join(awaited)}."


def _alert(fault: Fault, seen: Observed) -> str:
    name = fault.expected.alert
    if name is None:
        return f"none. {fault.expected.because}"
    page = f"[{name}](../runbooks/{name}.md)"
    also = "".join(f" {one}" for one in _also(fault, seen))
    return f"{page}, after {in_seconds(seen.alerts.get(name))}. {fault.expected.because}{also}"


def _also(fault: Fault, seen: Observed) -> Iterator[str]:
    """The other alerts, as sentences: those that have to fire with the reason."""
    others = {one: at for one, at in seen.alerts.items() if one != fault.expected.alert}
    for one, why in fault.expected.follow.items():
        yield f"{one} ({in_seconds(others.pop(one, None))}) follows: {why}."
    if others:
        named = ", ".join(f"{one} ({in_seconds(at)})" for one, at in others.items())
        yield f"Also fired: {named}."


def _end(fault: Fault, seen: Observed) -> str:
    if fault.expected.ends:
        return ""
    since = "the fault" if seen.healed else "that"
    return f"The job trains again {in_seconds(seen.recovered_after)} after {since}."
