"""The alerts whose causes are made on a cluster: what is judged of them, and their course."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from demo.caused_alerts import alert_course, alert_strikes, causes, jobs
from demo.caused_alerts.alert_course import AlertCourse
from demo.caused_alerts.alert_page import page
from demo.caused_alerts.causes import BY_NAME, CAUSES, Cause
from demo.caused_alerts.sighting import Awaited, Sighting, problems, read_sighting
from demo.errors import QueryError, StoryError
from demo.installation import RELEASE, ROOT, SYSTEM
from demo.ten_faults import record
from demo.ten_faults.answer import Answer
from demo.ten_faults.expectations import FAULTS
from demo.ten_faults.observation import Look
from demo.ten_faults.page_parts import transcript
from demo.ten_faults.scene import NAMESPACE, Scene, Struck
from regroup.kubernetes.advice import HEALS, advice
from regroup_operator.api import names

Json = dict[str, Any]
LABELS = {"alertname": "TrainingJobLossSpike", "severity": "warning", "trainingjob": "loop"}
URL = "https://example.org/TrainingJobLossSpike.md"
ANSWER = Answer("loop trains: step 5")
AWAITED = Awaited(LABELS, URL, ANSWER)
LOOK = Look(14.0, "loop\n  trains: step 5", 0, "loop   Running")
SEEN = Sighting(
    quiet_before=True,
    look=LOOK,
    fired_after=12.0,
    lasted=True,
    ended_after=9.0,
    labels=LABELS,
    summary="The loss of team/loop has jumped.",
    runbook_url=URL,
)


def judged(**changes: object) -> list[str]:
    """The problems of a sighting with changes."""
    return problems(AWAITED, dataclasses.replace(SEEN, **changes))  # type: ignore[arg-type]


def test_an_alert_that_comes_and_goes_as_awaited_has_no_problem() -> None:
    assert judged() == []


def test_an_alert_that_never_fires_is_the_only_problem() -> None:
    assert judged(fired_after=None, labels={}, ended_after=None) == ["the alert did not fire"]


def test_labels_of_another_job_too_few_of_them_or_another_runbook_are_problems() -> None:
    assert len(judged(labels={**LABELS, "trainingjob": "other"})) == 1
    assert len(judged(labels={**LABELS, "namespace": "team"})) == 1
    assert len(judged(labels={"alertname": LABELS["alertname"]})) == 1
    assert len(judged(runbook_url="https://example.org/")) == 1


def test_an_alert_that_was_there_before_or_stays_is_a_problem() -> None:
    assert judged(quiet_before=False) == ["it fired, or was about to, before its cause"]
    assert judged(ended_after=None) == ["it did not end after its cause was gone"]


def test_an_alert_that_ends_while_its_cause_lasts_is_a_problem_unless_it_may() -> None:
    passed = dataclasses.replace(SEEN, lasted=False)
    assert problems(AWAITED, passed) == ["it ended while its cause lasted"]
    assert problems(dataclasses.replace(AWAITED, passes=True), passed) == []
    assert "| TrainingJobLossSpike | warning | 12 s | by itself |" in page({"lossspike": passed})


def test_why_has_to_say_its_parts_and_to_end_with_zero() -> None:
    vague = dataclasses.replace(LOOK, why="loop is away", exit_code=1)
    assert judged(look=vague) == [
        "`why` ended with 1",
        "`why` should have said `loop trains: step 5` in its first sentence",
    ]


class Shell:
    """A scene that remembers what is typed and applied."""

    def __init__(self) -> None:
        self.typed: list[str] = []
        self.applied: list[Json] = []
        self.stage = self.kubectl = self

    def must(self, line: str) -> None:
        self.typed.append(line)

    def apply(self, *objects: Json, namespace: str) -> None:
        assert namespace == NAMESPACE
        self.applied += objects


# --- the table ------------------------------------------------------------------------------------


def test_each_alert_of_our_own_series_is_fired_by_a_fault_or_by_a_cause() -> None:
    """By one that fails when the alert does not come. What may fire by chance does not count."""
    by_faults = {alert for fault in FAULTS for alert in fault.expected.alerts}
    by_causes = {cause.alert for cause in CAUSES}
    assert by_faults | by_causes == causes.rules().keys()
    assert len(by_causes) == len(CAUSES) == 9
    assert by_causes.isdisjoint(by_faults)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_why_is_awaited_to_say_what_the_product_says_of_the_reason_of_a_cause(cause: Cause) -> None:
    """Of those that it has in its table."""
    answer = cause.answer
    reason = answer.sentence.split(": ")[1]
    said = advice(reason, cause.job)
    if said != advice("OfAnotherRelease", cause.job):
        assert (answer.heals, answer.todo) == (HEALS[said.heals], said.what_to_do)
    assert (answer.heals == answer.todo == "") == answer.sentence.startswith("loop trains: ")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_a_cause_awaits_the_labels_that_its_rule_keeps(cause: Cause) -> None:
    rule = causes.rules()[cause.alert]
    about = set(cause.about)
    assert all(f"$labels.{label}" in str(rule["annotations"]) for label in about)
    assert cause.awaited.labels["severity"] == rule["labels"]["severity"]
    assert (ROOT / f"docs/runbooks/{cause.alert}.md").exists()
    assert cause.awaited.runbook_url.endswith(f"/docs/runbooks/{cause.alert}.md")


def test_the_service_of_somebody_else_has_the_name_that_the_job_needs() -> None:
    stage = Shell()
    alert_strikes.take_name(cast("Scene", stage))
    needed = names.service(alert_strikes.CONFLICTING, names.COORDINATOR)
    assert stage.typed == [f"kubectl create service clusterip {needed} --tcp=80"]
    assert f"`{needed}`" in BY_NAME["objectconflict"].done
    assert [one["metadata"]["name"] for one in stage.applied] == [alert_strikes.CONFLICTING]


def test_what_is_patched_is_what_the_chart_installs() -> None:
    objects = list(yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()))
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects if one}
    assert found["Deployment", RELEASE]["metadata"]["namespace"] == SYSTEM
    pod = found["Deployment", RELEASE]["spec"]["template"]["spec"]
    assert pod["containers"][0]["env"]
    assert pod["containers"][0]["volumeMounts"]
    assert pod["volumes"]
    rules = found["ClusterRole", RELEASE]["rules"]
    assert [rule["verbs"] for rule in rules if alert_strikes.STATUS in rule["resources"]] == [
        ["patch"]
    ]


# --- the programs ---------------------------------------------------------------------------------


def test_the_config_map_of_each_program_holds_it() -> None:
    held = jobs.program(jobs.OPERATOR_PROGRAM, "sitecustomize.py")["data"]["sitecustomize.py"]
    assert f'JOB = "{jobs.BUG}"' in held
    assert f'"{jobs.SWITCH}"' in jobs.program(jobs.LOOP_PROGRAM, "loop.py")["data"]["loop.py"]


def test_each_fault_of_the_program_is_one_that_the_loop_knows() -> None:
    program = (jobs.PROGRAMS / "faulty_loop.py").read_text()
    for name in ("wrong targets", "memory leak", "slow storage", "corrupt shard"):
        assert f'fault() == "{name}"' in program or f'fault() != "{name}"' in program


def test_an_idle_job_is_the_loop_suspended_under_another_name() -> None:
    made = jobs.idle("idle-3")
    assert (made["metadata"]["name"], made["spec"]["suspend"]) == ("idle-3", True)
    assert "suspend" not in jobs.loop()["spec"]


# --- the course -----------------------------------------------------------------------------------


class Stage:
    """A scene on which the alert of a cause comes and goes with it."""

    def __init__(self, *, stale: bool = False) -> None:
        self.manager = self
        self.lasts = stale
        self.queries = 0
        self.typed: list[str] = []

    def alerts(self) -> list[Json]:
        self.queries += 1
        if self.queries == 1:
            raise QueryError("Prometheus does not answer")
        annotations = {"summary": "It has jumped.", "runbook_url": URL}
        other = {"labels": {"alertname": "TrainingJobStraggler"}, "annotations": annotations}
        own = {"labels": {"alertname": "TrainingJobLossSpike"}, "annotations": annotations}
        return [other, own] if self.lasts else [other]

    def active(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.alerts()} - {"TrainingJobStraggler"}

    def type_in(self, line: str) -> tuple[int, str]:
        self.typed.append(line)
        return 0, "loop trains: step 5" if self.lasts else "?"


class Blind(Stage):
    """One on which no command ends."""

    def type_in(self, line: str) -> tuple[int, str]:
        raise StoryError(f"{line} did not end")


def run(stage: Stage, strike: Callable[[Scene], Struck]) -> Sighting:
    """The course of the alert about the loss on such a scene."""
    cause = dataclasses.replace(
        BY_NAME["lossspike"], strike=strike, prepare=lambda _scene: None, answer=ANSWER
    )
    return AlertCourse(cast("Scene", stage), cause).run()


def lasting(stage: Stage) -> Callable[[Scene], Struck]:
    """A cause that lasts until somebody acts."""

    def strike(_scene: Scene) -> Struck:
        stage.lasts = True
        return Struck(lambda: setattr(stage, "lasts", False))

    return strike


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = {"QUIET_SECONDS": 0.1, "FIRES_SECONDS": 0.2, "ENDS_SECONDS": 0.2}
    for name, seconds in {**deadlines, "EVERY_SECONDS": 0.01, "PATIENCE_SECONDS": 0.1}.items():
        monkeypatch.setattr(alert_course, name, seconds)


def test_an_alert_is_followed_from_its_cause_to_its_end_though_a_query_fails() -> None:
    stage = Stage()
    seen = run(stage, lasting(stage))
    assert seen.quiet_before
    assert seen.lasted
    assert seen.fired_after is not None
    assert seen.ended_after is not None
    assert seen.labels == {"alertname": "TrainingJobLossSpike"}
    assert (seen.summary, seen.runbook_url) == ("It has jumped.", URL)
    assert seen.look.why == "loop trains: step 5"
    shown = re.findall(r"^\$ ([^;\n]+)", transcript("loop", seen.look), re.MULTILINE)
    assert stage.typed == shown, "typed in the order of the page"


def test_an_alert_that_does_not_come_is_not_waited_for_to_end() -> None:
    seen = run(Stage(), lambda _scene: Struck())
    assert (seen.fired_after, seen.ended_after, seen.labels) == (None, None, {})


def test_an_alert_that_is_there_before_and_stays_is_seen() -> None:
    seen = run(Stage(stale=True), lambda _scene: Struck())
    assert not seen.quiet_before
    assert seen.ended_after is None


def test_a_cause_is_taken_away_though_the_look_fails() -> None:
    stage = Blind()
    with pytest.raises(StoryError):
        run(stage, lasting(stage))
    assert not stage.lasts


# --- record and page ------------------------------------------------------------------------------


def test_what_was_seen_is_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    record.write(file, {"lossspike": SEEN})
    assert record.read_each(file, read_sighting) == {"lossspike": SEEN}


def test_the_page_names_what_was_not_caused_and_what_was_wrong() -> None:
    found: Mapping[str, Sighting] = {"lossspike": SEEN}
    made = page(found)
    assert "Not caused when this page was written: TrainingJobObjectConflict," in made
    assert "\n| TrainingJobLossSpike | warning | 12 s | 9 s |\n" in made
    assert "**Not as it should be**: its labels are" in made
    assert "The loss of team/loop has jumped." in made
