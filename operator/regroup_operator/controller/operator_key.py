"""The Secret with the operator's key, in the operator's own namespace: read, or made where there is
none. A chart cannot make it: each rendering would have another key.
"""

from __future__ import annotations

import base64
import secrets

from regroup_operator.api.resource import Object
from regroup_operator.controller.cluster import Cluster
from regroup_operator.errors import ClusterError, SettingsError
from regroup_operator.render.keyring import CURRENT, Keyring

KEY_BYTES = 36


async def read_or_make_keys(cluster: Cluster, place: str) -> Keyring:
    """The keys in the Secret `place`, which is `namespace/name`.

    Where another operator makes the Secret at the same time, its key is taken. Raises SettingsError
    when the Secret cannot be made or read, and ClusterError when the API server does not answer.
    """
    namespace, _, name = place.partition("/")
    try:
        found = await cluster.secret(namespace, name)
        if found is None:
            await cluster.create_secret(_new(namespace, name))
            found = await cluster.secret(namespace, name)
    except ClusterError as error:
        if error.may_pass:
            raise
        raise SettingsError(
            f"Secret {place} with the operator's key: {error}: make it, with at least 16 bytes in "
            f"the entry {CURRENT!r}, or allow the operator to"
        ) from error
    return Keyring.read(found or {}, place)


def _new(namespace: str, name: str) -> Object:
    key = base64.b64encode(secrets.token_urlsafe(KEY_BYTES).encode()).decode()
    labels = {"app.kubernetes.io/name": "regroup-operator", "app.kubernetes.io/part-of": "regroup"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": {CURRENT: key},
    }
