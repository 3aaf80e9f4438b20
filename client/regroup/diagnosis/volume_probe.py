"""Whether a claim is really shared and fast: two short pods on two nodes write and read."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field

from regroup.diagnosis.cluster_checks import Finding
from regroup.diagnosis.short_pods import running_pods
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_record import PodRecord
from regroup_operator.api.resource import Object

WRITTEN_MIB = 64
SLOW_MIB_PER_SECOND = 20.0
"""A checkpoint of 10 GiB takes more than eight minutes then."""
START_SECONDS = 180.0
"""For the pods to be placed, to pull the image and to mount the volume."""
STEP_SECONDS = 120.0
_LIFE_SECONDS = 900
"""After which the pods end by themselves, should nobody delete them."""
_USER = 1000
_FOLDER = "/volume/.regroup-doctor"
_LABEL = "regroup.dev/doctor"


@dataclass(frozen=True)
class Probe:
    """One check of a claim."""

    api: ClusterApi
    namespace: str
    claim: str
    image: str
    """An image with a shell, dd and sleep."""
    start_seconds: float = START_SECONDS
    number: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def names(self) -> tuple[str, str]:
        """Of the pods."""
        return f"regroup-doctor-{self.number}-a", f"regroup-doctor-{self.number}-b"

    @property
    def _file(self) -> str:
        return f"{_FOLDER}/{self.number}"

    def announcement(self) -> str:
        """What it creates."""
        return (
            f"This creates the pods {' and '.join(self.names)}\nwith image {self.image} in "
            f"namespace {self.namespace}. They write {WRITTEN_MIB} MiB to claim {self.claim}, in\n"
            f"{_FOLDER.rpartition('/')[2]}. Pods and files are deleted afterwards."
        )

    def run(self) -> list[Finding]:
        """What was found; pods and files are deleted in any case."""
        check = f"storage {self.claim}"
        advice = f"kubectl describe pod -n {self.namespace} -l {_LABEL}={self.number}, next time"
        try:
            bodies = [self._pod(name) for name in self.names]
            with running_pods(self.api, self.namespace, bodies, self.start_seconds) as pods:
                one, other = pods
                try:
                    return self._compare(check, one, other)
                finally:
                    self._remove_files(one)
        except ClusterError as error:
            return [Finding(check, "fail", str(error), advice)]

    def _compare(self, check: str, one: PodRecord, other: PodRecord) -> list[Finding]:
        where, file = f"nodes {one.node} and {other.node}", self._file
        began = time.monotonic()
        self._shell(
            one,
            f"mkdir -p {_FOLDER} && dd if=/dev/zero of={file} bs=1048576 count={WRITTEN_MIB} "
            f"conv=fsync 2>/dev/null && echo {self.number} > {file}.a",
        )
        speed = WRITTEN_MIB / (time.monotonic() - began)
        seen = self._shell(other, f"cat {file}.a; wc -c < {file}; echo {self.number} > {file}.b")
        back = self._shell(one, f"cat {file}.b")
        expected = [self.number, str(WRITTEN_MIB * 1024 * 1024)]
        if seen.split() != expected or back.split() != [self.number]:
            found = f"{where} do not see the same files: is it a volume of one node?"
            return [Finding(check, "fail", found, "use storage that all nodes share, such as NFS")]
        if speed < SLOW_MIB_PER_SECOND:
            found = f"shared by {where}, but slow: {speed:.0f} MiB/s"
            advice = "checkpoints take long: use faster storage, or longer checkpoint intervals"
            return [Finding(check, "warn", found, advice)]
        return [Finding(check, "ok", f"shared by {where}, {speed:.0f} MiB/s")]

    def _remove_files(self, pod: PodRecord) -> None:
        """The folder goes too, unless another probe has files there."""
        file = self._file
        line = f"rm -f {file} {file}.a {file}.b; rmdir {_FOLDER} 2>/dev/null || true"
        with suppress(ClusterError):  # the finding says what is wrong with the volume
            self._shell(pod, line)

    def _shell(self, pod: PodRecord, line: str) -> str:
        output = self.api.run_in_pod(self.namespace, pod, ["sh", "-c", line], STEP_SECONDS)
        if output.exit_code:
            reason = " ".join(output.stderr.split()) or f"exit code {output.exit_code}"
            raise ClusterError(f"pod {pod.name} on {pod.node} cannot use the volume: {reason}")
        return output.stdout

    def _pod(self, name: str) -> Object:
        """A pod that a restricted namespace admits, on another node than the other one."""
        labels = {_LABEL: self.number}
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        container = {
            "name": "doctor",
            "image": self.image,
            "command": ["sleep", str(_LIFE_SECONDS)],
            "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
            "resources": {
                "requests": {"cpu": "50m", "memory": "64Mi"},
                "limits": {"memory": "256Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        spec = {
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": self.claim}}],
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            },
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}
