"""Which claims get a volume, and which volumes are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devcluster.provisioner import (
    NAME,
    PROVISIONER_ANNOTATION,
    make_folder,
    released,
    volume_for,
    wanted,
)


def make_claim(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "shared",
            "namespace": "default",
            "uid": "u-1",
            "annotations": {PROVISIONER_ANNOTATION: NAME},
            **metadata,
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "shared",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def test_a_claim_that_asks_us_is_served_and_any_other_is_not() -> None:
    assert wanted(make_claim())
    assert not wanted(make_claim(annotations={}))
    assert not wanted(make_claim(deletionTimestamp="2026-01-01T00:00:00Z"))


def test_a_bound_claim_is_left_alone() -> None:
    claim = make_claim()
    claim["spec"]["volumeName"] = "pvc-u-1"
    assert not wanted(claim)


def test_the_volume_is_shared_and_tied_to_no_node() -> None:
    volume = volume_for(make_claim(), Path("/volumes/x"))
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "nodeAffinity" not in volume["spec"]
    assert volume["spec"]["claimRef"]["uid"] == "u-1"


def test_only_released_volumes_of_ours_are_deleted() -> None:
    volume = volume_for(make_claim(), Path("/volumes/x"))
    assert not released(volume)
    volume["status"] = {"phase": "Released"}
    assert released(volume)
    volume["metadata"]["annotations"] = {}
    assert not released(volume)


def test_everyone_may_write_to_a_volume(tmp_path: Path) -> None:
    make_folder(tmp_path / "volume")
    assert (tmp_path / "volume").stat().st_mode & 0o7777 == 0o1777
