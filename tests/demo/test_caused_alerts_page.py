"""docs/runbooks/fired-alerts.md is what today's code would write of the run that it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from demo.caused_alerts import causes
from demo.caused_alerts.alert_page import BY_ITSELF, page
from demo.caused_alerts.causes import CAUSES, LOOP_TRAINS, Cause
from demo.caused_alerts.sighting import Sighting, problems
from demo.ten_faults.answer import unsaid
from demo.ten_faults.observation import Look
from tests.support.kube_api import ROOT

PAGE = (ROOT / "docs/runbooks/fired-alerts.md").read_text()
TEN_FAULTS = (ROOT / "docs/tasks/ten-faults.md").read_text()
SECTIONS: Mapping[str, str] = dict(
    re.findall(r"^## (TrainingJob\w+)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
)
ARRIVED = re.compile(r"^```text\n(.*)\n((?:\w+: .*\n)+)(https://.*)\n```$", re.M)
LOOK = re.compile(
    r"^\$ kubectl get .*?\n(.*?)\n\$ kubectl .*?\n(.*?)\nexit code (\d+)$", re.M | re.S
)


FORMER = {
    "TrainingJobReconcileErrors": "NotObserved: no operator has looked at this job yet",
    "TrainingJobInternalError": "Heals: often within a minute; look closer when it lasts longer",
}
"""Words that `why` had for the job of an alert and has no more. A section with them is older than
that change, and shows what was not as it should be.
"""


def seen(cause: Cause) -> Sighting:
    """What the page says was seen of an alert."""
    text = SECTIONS[cause.alert]
    (fired, ended) = re.findall(rf"^\| {cause.alert} \| \w+ \| (.+) \| (.+) \|$", PAGE, re.M)[0]
    ((summary, lines, url),) = ARRIVED.findall(text)
    labels = dict(line.split(": ", 1) for line in lines.splitlines())
    ((line, why, code),) = LOOK.findall(text)
    return Sighting(
        quiet_before="before its cause" not in text,
        look=Look(0.0, why, int(code), line),
        fired_after=_number(fired),
        lasted=ended != BY_ITSELF,
        ended_after=0.0 if ended == BY_ITSELF else _number(ended),
        runbook_url=url,
        labels=labels,
        summary=summary,
    )


def _number(cell: str) -> float | None:
    return None if cell == "never" else float(cell.removesuffix(" s"))


def test_the_page_is_what_todays_code_writes_of_that_run() -> None:
    assert set(SECTIONS) == {cause.alert for cause in CAUSES}
    assert page({cause.slug: seen(cause) for cause in CAUSES}) == PAGE


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_what_it_shows_is_what_is_awaited_unless_the_product_says_it_otherwise_since(
    cause: Cause,
) -> None:
    shown = seen(cause)
    former = FORMER.get(cause.alert)
    is_older = former is not None and former in " ".join(shown.look.why.split())
    found = problems(cause.awaited, shown)
    assert bool(found) == is_older
    assert [problem for problem in found if not problem.startswith("`why` should have said")] == []


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_no_cause_awaits_what_why_says_of_another_job_or_reason(cause: Cause) -> None:
    """But where the job trains, and the alert knows more than `why`."""
    others = [one for one in CAUSES if one is not cause and one.alert not in FORMER]
    if cause.answer.sentence == LOOP_TRAINS:
        others = [one for one in others if not one.answer.sentence.startswith("loop trains: ")]
    for other in others:
        assert unsaid(cause.answer, {}, seen(other).look.why), other.alert


@pytest.mark.parametrize("alert", causes.rules())
def test_each_alert_of_our_own_series_has_fired_on_a_cluster(alert: str) -> None:
    """The page of the ten faults has the seconds until each of its alerts fired, that woke
    somebody or followed.
    """
    faults = " ".join(TEN_FAULTS.split())
    by_fault = re.search(rf"{alert}(?:\]\(\S+\), after \d+ s| \(\d+ s\) follows)", faults)
    assert by_fault or alert in SECTIONS
