"""Which cluster, as which user, in which namespace: read from the kubeconfig as kubectl does."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regroup.kubernetes.cluster_errors import ClusterError

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)
"""What the client raises for files that hold anything."""
_DEFAULT = Path("~/.kube/config")
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Target:
    """What the flags of kubectl choose; None: what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    user: str | None = None
    """Whom to impersonate."""

    def connect(self) -> Any:
        """An ApiClient of the official client. Raises ClusterError with what to do."""
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        if not self._in_pod() and not any(map(os.path.exists, self._files().split(os.pathsep))):
            raise ClusterError(self._explain("does not exist"))
        settings = client.Configuration()
        settings.retries = 1  # of a request without an answer; more would hide an outage
        settings.keep_alive = True  # a log that is followed may have no line for hours
        with _logged_errors() as logged:
            try:
                if self._in_pod():
                    config.load_incluster_config(client_configuration=settings)
                else:
                    config.load_kube_config(
                        config_file=self._files(),
                        context=self.context,
                        client_configuration=settings,
                        persist_config=False,
                    )
            except (ConfigException, *_UNREADABLE) as error:
                raise ClusterError(self._explain(error)) from None
        if logged:
            raise ClusterError(
                self._explain(f"no credentials: its login program failed: {logged[0]}")
            )
        api = client.ApiClient(settings)
        if self.user is not None:
            api.set_default_header("Impersonate-User", self.user)
        return api

    def current_namespace(self) -> str:
        """The namespace of the flag, else of the context, else `default`."""
        if self.namespace:
            return self.namespace
        if self._in_pod():
            return _POD_NAMESPACE.read_text().strip()
        return str(self._context().get("namespace") or "default")

    def _context(self) -> dict[str, Any]:
        """The chosen context; empty when it cannot be read, which `connect` explains."""
        from kubernetes import config

        try:
            contexts, active = config.list_kube_config_contexts(self._files())
        except (config.ConfigException, *_UNREADABLE):
            return {}
        chosen = next((c for c in contexts if c["name"] == self.context), None)
        return dict((chosen if self.context else active or {}) or {}).get("context") or {}

    def _files(self) -> str:
        return self.kubeconfig or os.environ.get("KUBECONFIG") or str(_DEFAULT.expanduser())

    def _in_pod(self) -> bool:
        """Whether no kubeconfig is there, but a pod's service account is."""
        return not (self.kubeconfig or self.context or os.environ.get("KUBECONFIG")) and (
            not _DEFAULT.expanduser().exists() and _POD_NAMESPACE.exists()
        )

    def _explain(self, why: object) -> str:
        context = f", context {self.context}" if self.context else ""
        advice = "give a file with --kubeconfig, and one of its contexts with --context"
        sentence = " ".join(str(why).split()).rstrip(".")
        return f"kubeconfig {self._files()}{context}: {sentence}: {advice}"


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Collect what is logged as an error inside: the client only logs that an exec plugin failed.
    It then goes on without credentials.
    """
    logged: list[str] = []

    class Keep(logging.Handler):
        """Keeps the messages."""

        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    root, handler = logging.getLogger(), Keep(logging.ERROR)
    root.addHandler(handler)
    try:
        yield logged
    finally:
        root.removeHandler(handler)
