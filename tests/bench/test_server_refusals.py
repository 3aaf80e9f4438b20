"""Which refusals of the API server a fuzz calls findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.fuzz.fuzz_course import FuzzOutcome
from bench.fuzz.server_refusals import SERVER_ALONE, answers, is_known, kinds, unknown

FORBIDDEN = '403 pods "a" is forbidden: '
ALONE = {
    r"403 .*(exceeded|failed) quota: ": f"{FORBIDDEN}exceeded quota: few, requested: pods=1",
    r"403 .*serviceaccount \"[^\"]*\" not found": (
        f'{FORBIDDEN}error looking up service account team/a=b: serviceaccount "a=b" not found'
    ),
    r"403 .*no PriorityClass with name \S+ was found": (
        f"{FORBIDDEN}no PriorityClass with name high was found"
    ),
    r"403 .*priority admission controller computed": (
        f"{FORBIDDEN}the integer value of priority (7) must not be provided in pod spec; priority "
        "admission controller computed 0 from the given PriorityClass name"
    ),
    r"403 .*RuntimeClass \"[^\"]*\" not found": (
        f'{FORBIDDEN}pod rejected: RuntimeClass "kata" not found'
    ),
    r"403 .*violates PodSecurity ": f'{FORBIDDEN}violates PodSecurity "restricted:latest": hostPID',
    r"403 .*(max|min)imum .* usage per (Container|Pod) is": (
        f"{FORBIDDEN}maximum cpu usage per Container is 1, but limit is 2"
    ),
    r"4\d\d .*(denied (the )?request|denied request): ": (
        "403 pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied "
        "request: no"
    ),
    r"403 .*because it is being terminated|404 namespaces ": (
        f"{FORBIDDEN}unable to create new content in namespace a because it is being terminated"
    ),
    r"422 .*(field is immutable|pod updates may not change|may not be changed)": (
        '422 PersistentVolumeClaim "a" is invalid: spec.storageClassName: Invalid value: "x": '
        "field is immutable"
    ),
    r"404 |409 ": '409 pods "a" already exists',
    r"429 |5\d\d ": "500 etcdserver: request timed out",
}
"""Pattern of SERVER_ALONE -> an answer that it stands for."""


def test_what_only_the_api_server_can_know_is_no_finding() -> None:
    assert ALONE.keys() == SERVER_ALONE.keys()
    assert {pattern: kinds(answer) for pattern, answer in ALONE.items()} == dict.fromkeys(
        ALONE, frozenset()
    )


INVALID = '422 Pod "a" is invalid: '
ALIAS = 'spec.hostAliases[{}].ip: Invalid value: "x": must be a valid IP address'
COMMAND = "startupProbe.exec.command: Required value"
IN_VERSION = "Pod in version {} cannot be handled as a Pod: json: cannot unmarshal number {}"
ACCOUNT = "error looking up service account a//x: invalid resource name {}: [may not contain '/']"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"{INVALID}spec.os.name: Required value", {"spec.os.name: Required value"}),
        (
            f"{INVALID}[{ALIAS.format(0)}, {ALIAS.format(12)}, spec.initContainers[0].{COMMAND}]",
            {"spec.hostAliases[].ip: Invalid value", f"spec.containers[].{COMMAND}"},
        ),
        ("422 TrainingJob is invalid: status.a: Too many: 9: 8 is most", {"status.a: Too many"}),
        ("400 " + IN_VERSION.format('"v1"', 12), {f"400 {IN_VERSION.format('_', '_')}"}),
        (
            FORBIDDEN + ACCOUNT.format('"/x"'),
            {f"403 pods _ is forbidden: {ACCOUNT.format('_')}"},
        ),
    ],
)
def test_a_finding_is_of_one_kind_whichever_container_or_entry_it_is_in(
    answer: str, found: set[str]
) -> None:
    assert kinds(answer) == found


def test_what_was_found_before_is_known_and_what_looks_like_it_is_not() -> None:
    known = [
        "spec.hostAliases[].ip: Invalid value",
        f"spec.containers[].{COMMAND}",
        f"403 pods _ is forbidden: {ACCOUNT.format('_')}",
    ]
    new = ["spec.os.name: Required value", "spec.hostAliasesOfAll: Forbidden", "status.a: Too many"]
    assert all(map(is_known, known))
    assert unknown([*known, *new]) == new


def test_answers_are_read_from_the_words_of_the_operator() -> None:
    line = "WARNING a/b: POST /api/v1/namespaces/a/pods: 422 Pod is invalid: spec.x: Required value"
    assert answers(line) == ["422 Pod is invalid: spec.x: Required value"]
    assert answers("WARNING a/b: POST /api/v1/namespaces/a/pods: no answer within 9 s") == []
    assert answers("INFO a/b: CreateWorker(index=0)") == []


def test_the_first_refusal_of_each_kind_is_kept_and_only_new_kinds_are_problems(
    tmp_path: Path,
) -> None:
    outcome = FuzzOutcome()
    found = outcome.findings
    for name in ("first", "second"):
        found.note_refusal('422 Pod "a" is invalid: spec.os.name: Required value', {"os": name})
    found.note_refusal('422 Pod "a" is invalid: spec.hostAliases[0].ip: Invalid value: "x"', "log")
    found.note_refusal('409 pods "a" already exists', "log")
    (problem,) = outcome.problems()
    assert "spec.os.name" in problem
    assert '{"os": "first"}' in problem
    assert found.known_kinds() == 1
    found.write_refusals(tmp_path / "refusals.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "refusals.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["known"]) for line in lines] == [
        ("spec.hostAliases[].ip: Invalid value", True),
        ("spec.os.name: Required value", False),
    ]


def test_the_log_has_findings_of_drawn_jobs_and_errors_of_all() -> None:
    refused = "POST /api/v1/namespaces/a/pods: 422 Pod is invalid: spec.{}: Required value"
    outcome = FuzzOutcome()
    outcome.read_log(
        f"WARNING a/job-7: {refused.format('drawn')}\n"
        f"WARNING a/changing-1-0-4: {refused.format('changed')}\n"
        "ERROR a/changing-1-0-4: reconcile failed\n"
    )
    assert list(outcome.findings.refusals) == ["spec.drawn: Required value"]
    assert outcome.troubles == ["ERROR a/changing-1-0-4: reconcile failed"]
