"""Provisions the storage class `shared`: a folder for every claim, shared by the pods of all nodes.

python -m devcluster.provisioner ADDRESS PORT PKI_FOLDER VOLUMES_FOLDER

All nodes see the same folder of the machine. A hostPath volume without node affinity is therefore a
shared file system.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from devcluster.kubeapi import Json, KubeApi, RequestRefusedError

NAME = "regroup.dev/shared-folder"
CLASS = "shared"
WATCH_SECONDS = 300.0
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/persistentvolumeclaims"
PROVISIONER_ANNOTATION = "volume.kubernetes.io/storage-provisioner"
"""The annotation by which the controllers ask a provisioner to serve a claim."""

STORAGE_CLASS: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": NAME,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}


def wanted(claim: Json) -> bool:
    """Whether a claim waits for a volume from this provisioner."""
    asked: bool = claim["metadata"].get("annotations", {}).get(PROVISIONER_ANNOTATION) == NAME
    return (
        asked
        and not claim["spec"].get("volumeName")
        and not claim["metadata"].get("deletionTimestamp")
    )


def released(volume: Json) -> bool:
    """Whether a volume of this provisioner has lost its claim and may be deleted."""
    ours: bool = (
        volume["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by") == NAME
    )
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    return ours and policy == "Delete" and volume.get("status", {}).get("phase") == "Released"


def volume_for(claim: Json, folder: Path) -> Json:
    """The volume that serves a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "annotations": {"pv.kubernetes.io/provisioned-by": NAME},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec["storageClassName"],
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def make_folder(folder: Path) -> None:
    """Create a folder that every user can write to. hostPath volumes ignore fsGroup."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o1777)


@dataclass(frozen=True)
class Provisioner:
    """Provisions the volumes of one cluster."""

    api: KubeApi
    folder: Path

    def serve(self, claims: Iterable[Json]) -> None:
        """Create a volume for each claim that waits for one."""
        for claim in filter(wanted, claims):
            metadata = claim["metadata"]
            folder = (
                self.folder / f"{metadata['namespace']}-{metadata['name']}-{metadata['uid'][:8]}"
            )
            make_folder(folder)
            try:
                self.api.request("POST", VOLUMES, volume_for(claim, folder))
            except RequestRefusedError as refused:
                if refused.status != http.client.CONFLICT:  # created in an earlier round
                    raise

    def reclaim(self, volumes: Iterable[Json]) -> None:
        """Delete the volumes without a claim, and their content."""
        for volume in filter(released, volumes):
            shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)
            try:
                self.api.request("DELETE", f"{VOLUMES}/{volume['metadata']['name']}")
            except RequestRefusedError as refused:
                if refused.status != http.client.NOT_FOUND:
                    raise

    def follow(self, path: str, handle: Callable[[Iterable[Json]], None]) -> None:
        """Handle all objects of a collection, then every change. Does not return."""
        while True:
            try:
                listed = self.api.request("GET", path)
                handle(listed["items"])
                for event in self.api.watch(
                    path, listed["metadata"]["resourceVersion"], WATCH_SECONDS
                ):
                    if event["type"] == "ERROR":  # our resource version is too old: list again
                        break
                    if event["type"] != "DELETED":
                        handle([event["object"]])
            except (OSError, http.client.HTTPException, RequestRefusedError) as error:
                print(f"{path}: trying again: {error}", flush=True)
                time.sleep(1)

    def run(self) -> None:
        """Serve and reclaim volumes. Does not return."""
        threading.Thread(target=self.follow, args=(VOLUMES, self.reclaim), daemon=True).start()
        self.follow(CLAIMS, self.serve)


def main() -> None:
    """Entry point of the process that `devcluster up` starts."""
    address, port, pki, folder = sys.argv[1:]
    keys = Path(pki)
    api = KubeApi(address, int(port), keys / "ca.crt", keys / "admin.crt", keys / "admin.key")
    Provisioner(api, Path(folder)).run()


if __name__ == "__main__":
    main()
