"""The ten faults: what is judged of them, and the page about them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import cast

import pytest
import yaml

from demo.errors import QueryError
from demo.fired_alerts import ALERTS
from demo.ten_faults import record, strikes
from demo.ten_faults.answer import ANYTHING, SOMEBODY, Answer, unsaid
from demo.ten_faults.course import QUIET_SECONDS, Course
from demo.ten_faults.expectations import FAULTS, Fault
from demo.ten_faults.observation import Expected, Look, Observed, problems
from demo.ten_faults.page_parts import transcript
from demo.ten_faults.report_page import page
from demo.ten_faults.scene import Scene, Struck, values
from regroup.kubernetes.advice import HEALS, advice

EXPECTED = Expected(
    "TrainingJobStalled",
    "It stands still.",
    Answer(
        "gpt waits: node {node}: No space left on device",
        heals=SOMEBODY,
        todo="free space on {node}",
        evidence=("quota ...: pods 4 of 4",),
    ),
    afterwards=Answer("gpt trains"),
    heals=False,
    also=frozenset({"TrainingJobGoodputLow"}),
)
WHY = """\
gpt waits: node n2: No space
left on device

Evidence:
  - status: Pending
  - quota of-team:
    pods 4 of 4

Heals: no, somebody has
to act
Do: free space on n2"""
HEIGHT = Look(12.0, WHY, 0, "gpt   Pending")
SEEN = Observed(
    height=HEIGHT,
    after=Look(60.0, "gpt trains", 0, "gpt   Running"),
    shown_after=3.0,
    alerts={"TrainingJobStalled": 11.0},
    recovered_after=8.0,
    names={"node": "n2", "rank": "1"},
    run="2026-11-27 21:17 UTC",
)


STATES = ("trains", "trains, but", "does not train", "has ended")


def judged(**changes: object) -> list[str]:
    """The problems of an observation with changes."""
    return problems(EXPECTED, dataclasses.replace(SEEN, **changes))  # type: ignore[arg-type]


def test_words_are_found_over_the_ends_of_lines() -> None:
    assert judged() == []


def test_an_alert_that_is_missing_or_too_much_is_a_problem() -> None:
    assert judged(alerts={}) == ["alert TrainingJobStalled did not fire"]
    held = judged(alerts={}, pending=frozenset({"TrainingJobStalled"}))
    assert held == ["alert TrainingJobStalled did not fire (it was pending)"]
    more = {**SEEN.alerts, "TrainingJobGoodputLow": 30.0}
    assert judged(alerts=more) == []
    wrong = judged(alerts={**more, "TrainingJobStraggler": 30.0})
    assert wrong == ["alert TrainingJobStraggler fired and should not"]


def test_an_alert_that_has_to_follow_is_awaited_too() -> None:
    follows = {"TrainingJobFailed": "it ends"}
    expected = dataclasses.replace(EXPECTED, follow=follows)
    assert problems(expected, SEEN) == ["alert TrainingJobFailed did not fire"]
    both = dataclasses.replace(SEEN, alerts={**SEEN.alerts, "TrainingJobFailed": 12.0})
    assert problems(expected, both) == []


def test_why_has_to_say_all_parts_and_to_end_with_zero() -> None:
    vague = dataclasses.replace(HEIGHT, why="gpt waits", exit_code=1)
    ended, *unsaid_parts = judged(height=vague)
    assert ended == "`why` ended with 1 while it lasted"
    parts = [
        "`gpt waits: node n2: No space left on device` in its first sentence",
        "`no, somebody has to act` after `Heals:`",
        "`free space on n2` after `Do:`",
        "`quota ...: pods 4 of 4` as evidence",
    ]
    assert unsaid_parts == [f"`why` should have said {part} while it lasted" for part in parts]


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (WHY.replace("gpt waits", "gpt trains, but"), "in its first sentence"),
        (WHY.replace("left on device", "left on device?"), "in its first sentence"),
        (WHY.replace("no, somebody", "often, or somebody"), "after `Heals:`"),
        (WHY.replace("Do: free space", "Do: make a note, then free space"), "after `Do:`"),
        (WHY.replace("pods 4 of 4", "pods 4 of 5"), "as evidence"),
    ],
)
def test_a_part_that_says_other_words_or_more_is_a_problem(other: str, part: str) -> None:
    (problem,) = judged(height=dataclasses.replace(HEIGHT, why=other))
    assert part in problem


def test_a_job_that_trains_well_heals_from_nothing() -> None:
    (problem,) = unsaid(Answer("gpt trains"), {}, "gpt trains\n\nHeals: no\nDo: nothing")[:1]
    assert problem == "`nothing` after `Heals:`"


def test_another_node_than_the_one_that_was_struck_is_a_problem() -> None:
    sentence, todo = judged(names={"node": "n3", "rank": "1"})
    assert "`gpt waits: node n3: " in sentence
    assert "`free space on n3`" in todo


def test_a_job_that_heals_or_does_not_against_the_table_is_a_problem() -> None:
    assert judged(healed=True) == ["the job healed by itself"]
    assert judged(recovered_after=None) == ["the job did not train again"]


def test_there_are_ten_faults_and_each_alert_of_them_is_a_rule_of_the_chart() -> None:
    rules = {
        rule["alert"]
        for group in yaml.safe_load((ALERTS / "regroup.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    named = {alert for fault in FAULTS for alert in fault.expected.alerts}
    assert len(FAULTS) == 10
    assert named <= rules
    assert frozenset().union(*(fault.expected.also for fault in FAULTS)) <= rules


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.slug)
def test_each_fault_expects_what_the_product_says_of_its_reason(fault: Fault) -> None:
    """Of those whose job does not end, and is not whole before anybody looks."""
    answer = fault.expected.answer.filled({"node": "n1", "rank": "1"})
    head, *rest = answer.sentence.split(": ")
    if head == f"{fault.job} trains" or fault.expected.ends:
        return
    said = advice(reason_of(rest[0]), fault.job, ["n1"] if "node n1 " in answer.sentence else ())
    assert (answer.heals, answer.todo) == (HEALS[said.heals], said.what_to_do)


def reason_of(reason: str) -> str:
    """What is judged instead of a worker that is missing, as pods show it."""
    return "Unschedulable" if reason == "WorkersMissing" else reason


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.slug)
def test_each_fault_expects_a_reason_what_is_wrong_how_it_heals_and_what_to_do(
    fault: Fault,
) -> None:
    expected, job = fault.expected, fault.job
    for answer in (expected.answer, expected.afterwards):
        head, *rest = answer.sentence.split(": ")
        assert head in {f"{job} {state}" for state in STATES}
        whole = head == f"{job} trains"
        assert (answer.heals == answer.todo == "") if whole else (answer.heals and answer.todo)
        assert whole or re.fullmatch(r"[A-Z]\w+", rest[0]), "the reason"
        assert whole or len(rest[1]) > len(ANYTHING), "what is wrong"
    assert expected.answer.heals.startswith("no") == (not expected.heals)


def test_the_values_of_the_page_about_monitoring_switch_all_on() -> None:
    metrics = values()["metrics"]
    assert all(metrics[kind]["enabled"] for kind in metrics)
    assert set(metrics) == {"serviceMonitor", "podMonitor", "prometheusRule"}


def test_a_job_of_its_own_is_the_sample_with_one_worker() -> None:
    made = strikes.single("gpt-size", image="any")
    assert made["metadata"]["name"] == "gpt-size"
    assert (made["spec"]["replicas"], made["spec"]["image"]) == (1, "any")
    assert "gpt-demo" not in yaml.safe_dump(made)


class Shaky:
    """A scene whose second query fails, and whose kubectl has `answer`."""

    def __init__(self, answer: tuple[int, str] = (0, "")) -> None:
        self.answer = answer
        self.queries = 0
        self.typed: list[str] = []

    def alerts(self, _job: str) -> dict[str, str]:
        self.queries += 1
        if self.queries == 2:
            raise QueryError("Prometheus does not answer")
        return {} if self.queries == 1 else {"TrainingJobStalled": "firing"}

    def status(self, _job: str) -> dict[str, object]:
        return {}

    def type_in(self, line: str) -> tuple[int, str]:
        self.typed.append(line)
        return self.answer


def shaky(code: int = 0, output: str = "") -> Scene:
    """One of them."""
    return cast("Scene", Shaky((code, output)))


def test_a_query_that_fails_ends_no_watch_of_the_alerts() -> None:
    course = Course(shaky(), FAULTS[2])
    course._note()
    assert not course._alerts
    course._note()
    assert set(course._alerts) == {"TrainingJobStalled"}


def test_commands_are_typed_in_the_order_in_which_the_page_shows_them() -> None:
    """Else `why` seems to know less than `kubectl get` above it."""
    stage = Shaky()
    look = Course(cast("Scene", stage), FAULTS[0])._look()
    shown = re.findall(r"^\$ ([^;\n]+)", transcript(FAULTS[0].job, look), re.MULTILINE)
    assert stage.typed == shown


def test_a_fault_lasts_until_all_its_alerts_have_fired_and_why_has_said_it() -> None:
    (hang,) = (fault for fault in FAULTS if fault.name == "a rank that hangs")
    first, *others = hang.expected.alerts
    assert others
    course = Course(shaky(), hang)
    course._alerts = {first: 12.0}
    assert not course._is_high(65.0, said=True)
    course._alerts |= dict.fromkeys(others, 64.0)
    assert course._is_high(65.0, said=True)
    assert not course._is_high(65.0, said=False)
    assert course._is_high(65.0 + hang.expected.patience_seconds, said=False)


def test_where_no_alert_should_fire_one_is_given_time_to() -> None:
    course = Course(shaky(), FAULTS[0])
    assert not course._is_high(QUIET_SECONDS - 1, said=True)
    assert not course._is_high(QUIET_SECONDS + 1, said=False)
    assert course._is_high(QUIET_SECONDS + 1, said=True)


def test_a_claim_is_gone_only_where_kubectl_has_listed_the_others() -> None:
    assert strikes.is_released(shaky(0, "persistentvolumeclaim/other"))
    assert not strikes.is_released(shaky(0, "persistentvolumeclaim/shared"))
    assert not strikes.is_released(shaky(1, "Unable to connect to the server"))


def test_the_page_shows_the_picture_of_a_run_that_has_tried_all() -> None:
    found = {fault.slug: SEEN for fault in FAULTS}
    whole = page(found, "../pictures/any.png")
    assert "](../pictures/any.png)" in whole
    assert "All is of one run, of 2026-11-27 21:17 UTC." in whole
    assert "![" not in page(found)
    quota = {"quota": dataclasses.replace(SEEN, run="2026-11-28 09:00 UTC")}
    pieced = page(found | quota, "../pictures/any.png")
    assert "![" not in pieced
    assert "The faults were tried in 2 runs: " in pieced
    assert "quota (2026-11-28 09:00 UTC)" in " ".join(pieced.split())


def test_what_was_observed_is_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "observed.json"
    assert record.read(file) == {}
    record.write(file, {"quota": SEEN})
    assert record.read(file) == {"quota": SEEN}


def test_the_page_shows_each_fault_with_its_transcripts_and_problems() -> None:
    made = page({fault.slug: SEEN for fault in FAULTS})
    for fault in FAULTS:
        assert f"\n| {fault.name} |" in made
        assert f"$ kubectl trainingjob why {fault.job}" in made
    assert made.count("\n## ") == len(FAULTS)
    assert made.count("\n**Verdict**: ") == len(FAULTS)
    assert "**Verdict**: not as it should be: alert TrainingJobStraggler did not fire" in made
    assert max(map(len, made.splitlines())) <= 130, "rows of a table may be longer"


@pytest.mark.parametrize(("at", "seconds"), [(None, 60.0), (130.0, 30.0)])
def test_times_count_from_when_the_strike_began_or_from_the_moment_that_it_names(
    monkeypatch: pytest.MonkeyPatch, at: float | None, seconds: float
) -> None:
    """The strike, from second 100 on, takes a minute."""
    now = [100.0]
    monkeypatch.setattr("demo.ten_faults.course.time.monotonic", lambda: now[0])

    def strike(_scene: Scene) -> Struck:
        now[0] += 60.0
        return Struck(at=at)

    course = Course(shaky(), dataclasses.replace(FAULTS[0], strike=strike))
    course.strike()
    assert course._seconds() == seconds
