"""The pod that reads checkpoints, as it follows from a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regroup.diagnosis.reader_pod import Reader, UnreadableJobError, reader_of, with_step
from regroup_operator.api.pod_types import find_mismatch
from tests.support.operator_simulation import make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IMAGES = {"trainer": "trainer@sha256:1", "coordinator": "operator:1"}
SAVED = {"images": IMAGES, "checkpoint": {"lastStep": 7}}
CLAIM = {"persistentVolumeClaim": {"claimName": "shared", "subPath": "teams/a"}}
ALONE = {"replicas": 1, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 1}}
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def make_reader(
    status: dict[str, Any] = SAVED,
    *,
    pods: tuple[dict[str, Any], ...] = (),
    step: int | None = None,
    **fields: Any,
) -> Reader:
    spec = make_spec(**{"checkpoint": {"storage": CLAIM}, **fields})
    metadata = {"namespace": "team", "name": "gpt", "uid": "4322f31b-aaaa", "generation": 1}
    document = {"metadata": metadata, "spec": spec, "status": status}
    words = with_step(["export", "--out", "-"], step)
    return reader_of(document, pods, words, "0a0a", NOW)


def with_template(**spec: Any) -> dict[str, Any]:
    """Fields of a job whose workers have an image of the user."""
    main = {"name": "trainer", "image": "mine:1", "command": ["/opt/py/bin/python", "train.py"]}
    main |= spec.pop("main", {})
    return {"template": {"spec": {"containers": [main], **spec}}, "trainer": None}


def test_it_mounts_the_folder_of_the_claim_read_only_and_has_no_rights() -> None:
    reader = make_reader()
    body, spec = reader.body, reader.body["spec"]
    (container,) = spec["containers"]
    assert find_mismatch(spec, "PodSpec", "reader") == ""
    assert body["metadata"]["name"] == "gpt-reader-0a0a"
    assert body["metadata"]["labels"] == {"regroup.dev/reader": "gpt"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], "controller" in owner) == ("4322f31b-aaaa", False)
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 3600
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {**SECURE, "readOnlyRootFilesystem": True}
    assert container["volumeMounts"][0] == {
        "name": "checkpoints",
        "mountPath": "/regroup/volume/teams/a",
        "subPath": "teams/a",
        "readOnly": True,
    }
    assert container["image"] == "trainer@sha256:1"
    directory = "/regroup/volume/teams/a/team/gpt-4322f31b"
    words = f"python -P -m regroup_trainer.checkpoint export {directory} --out -"
    assert reader.command == tuple(words.split())
    assert make_reader(step=7).command[-2:] == ("--step", "7")


def test_an_image_of_the_user_gets_our_code_as_a_worker_does() -> None:
    reader = make_reader(**with_template())
    (copier,) = reader.body["spec"]["initContainers"]
    assert copier["image"] == "operator:1"
    assert reader.command[0] == "/opt/py/bin/python"
    assert reader.command[1].endswith("/agent/start.py")
    assert reader.body["spec"]["containers"][0]["command"][0] == "/opt/py/bin/python"


def test_it_runs_where_and_as_whom_the_workers_run_but_never_as_root() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    given = with_template(
        nodeSelector={"pool": "a"},
        tolerations=tolerations,
        securityContext={"runAsUser": 7, "fsGroup": 8, "runAsNonRoot": False},
        main={"securityContext": {"runAsUser": 0, "privileged": True}},
    )
    pods: tuple[dict[str, Any], ...] = (
        {"spec": {}},
        {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
    )
    spec = make_reader(pods=pods, **given).body["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "a"}, tolerations)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    security = spec["securityContext"]
    assert (security["runAsUser"], security["fsGroup"], security["runAsNonRoot"]) == (1000, 8, True)
    assert "privileged" not in spec["containers"][0]["securityContext"]


def test_a_suspended_job_is_read_by_the_images_that_it_had() -> None:
    status = {"lastImages": IMAGES, "checkpoint": {"lastStep": 7}}
    assert make_reader(status).body["spec"]["containers"][0]["image"] == "trainer@sha256:1"


@pytest.mark.parametrize(
    ("status", "fields", "why"),
    [
        ({"checkpoint": {"lastStep": 7}}, {}, "it is not known which images it ran"),
        (SAVED, {**ALONE, "checkpoint": {"storage": {"emptyDir": {}}}}, "lie in its pods"),
        (SAVED, {"replicas": -1}, "its spec is invalid: "),
        (SAVED, {"launcher": "torchrun", **with_template()}, "launcher torchrun: its script"),
    ],
)
def test_a_job_that_has_nothing_to_read_is_one_sentence(
    status: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnreadableJobError, match=why):
        make_reader(status, **fields)
