"""Jobs of a namespace, with the rights of the kubeconfig's user."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regroup.converting.inline_code import CODE_FOLDER
from regroup.kubernetes.submit_code import CODE, submit
from regroup.training_client import install_packages
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.job import Job
from regroup.training_client.job_document import (
    CODE_FORM,
    INSTALLER,
    Packages,
    code_object,
    with_code,
)
from regroup.training_client.sent_code import SentCode
from regroup_operator.api.names import PYTHON
from regroup_operator.api.resource import Object
from regroup_trainer.protocol.extras import missing_extra

if TYPE_CHECKING:
    from regroup.kubernetes.cluster_api import ClusterApi
    from regroup.kubernetes.kubeconfig import Target


@dataclass
class KubernetesBackend:
    """What the official client reaches. It is imported when it is needed."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    is_cluster = True

    def complete(self, document: Object) -> Object:
        """Nothing is left out on a cluster."""
        return document

    def add_code(self, document: Object, code: SentCode, packages: Packages | None) -> Object:
        """The job with its code mounted, and with what identifies this submission. Raises CodeError
        for more code than a ConfigMap holds.
        """
        code.require_config_map()
        command = code.command(CODE_FOLDER)
        text = json.dumps(document, sort_keys=True, default=str) + code.digest
        noted = {
            CODE: hashlib.sha256(text.encode()).hexdigest()[:16],
            CODE_FORM: code.explanation,
        }
        if code.python:
            noted[PYTHON] = code.python
        return with_code(document, command, noted, packages)

    def submit(self, document: Object, code: SentCode | None) -> Job:
        """Create the job. Raises ClusterError."""
        namespace = self._namespace_of(document)
        if code is None:
            self._api.create_job(namespace, document, dry_run=False)
        else:
            name = str(document["metadata"]["name"])
            submit(self._api, namespace, document, code_object(name, _files_of(document, code)))
        return self._job(namespace, document)

    def job(self, name: str) -> Job:
        """A job that exists. Raises ClusterError."""
        namespace = self._target.current_namespace()
        return self._job(namespace, self._api.job(namespace, name))

    def close(self) -> None:
        """Close the connections, where there are any."""
        if "_api" in vars(self):
            self._api.close()

    @functools.cached_property
    def _api(self) -> ClusterApi:
        from regroup.kubernetes.cluster_api import ClusterApi

        return ClusterApi(self._target)

    @functools.cached_property
    def _target(self) -> Target:
        if (missing := missing_extra("kubernetes", ("kubernetes",))) is not None:
            raise TrainingClientError(f"backend kubernetes: {missing}")
        from regroup.kubernetes.kubeconfig import Target

        return Target(self.kubeconfig, self.context, self.namespace)

    def _namespace_of(self, document: Object) -> str:
        return str(document["metadata"].get("namespace") or self._target.current_namespace())

    def _job(self, namespace: str, document: Object) -> Job:
        from regroup.training_client.kubernetes_job import KubernetesJob

        metadata = document["metadata"]
        form = (metadata.get("annotations") or {}).get(CODE_FORM, "")
        return KubernetesJob(self._api, namespace, str(metadata["name"]), str(form))


def _files_of(document: Object, code: SentCode) -> Mapping[str, bytes]:
    """With the program that installs packages, where the job has an init container for it."""
    if not document["spec"]["template"]["spec"].get("initContainers"):
        return code.files
    return {**code.files, INSTALLER: Path(install_packages.__file__).read_bytes()}
