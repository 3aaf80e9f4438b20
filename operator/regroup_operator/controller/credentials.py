"""How the operator proves to the API server who it is, and checks whom it talks to."""

from __future__ import annotations

import dataclasses
import os
import ssl

import kopf


class Credentials(kopf.ConnectionInfo):
    """Credentials that accept the API server's certificate when kubectl does.

    Python 3.13 and newer also refuse a certificate without key identifiers, which older clusters
    have. Signature, validity and name are checked in any case.
    """

    def as_ssl_context(self) -> ssl.SSLContext:
        """The context for connections to the API server."""
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def login() -> Credentials:
    """Credentials of the pod's service account, else of the kubeconfig. Raises kopf.LoginError.

    Inside the cluster the API server is called by address, so that it is reached while the
    cluster's DNS is down.
    """
    settings = kopf.OperatorSettings()
    info = kopf.login_with_service_account(settings=settings)
    if info is not None:
        return _credentials(info, server=_server_in_cluster() or info.server)
    info = kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise kopf.LoginError("neither a service account nor a kubeconfig: set KUBECONFIG")
    return _credentials(info)


def _server_in_cluster() -> str | None:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else None


def _credentials(info: kopf.ConnectionInfo, **changes: str) -> Credentials:
    values = {item.name: getattr(info, item.name) for item in dataclasses.fields(info)}
    return Credentials(**{**values, **changes})
