"""The operator's keys, and the jobs' tokens that are derived from them. Pure.

A Secret of the operator holds the key in use in the entry `key`, and former ones in entries whose
names begin with `former-`. A job keeps the key that it was started with, which its status names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from regroup_operator.errors import KeyMissingError, SettingsError
from regroup_operator.observe.observed import JobObject

CURRENT = "key"
FORMER = "former-"
LEAST_BYTES = 16
_NAMED = b"regroup.dev/name-of-key"
"""What a key's name is derived from. No UID of a job is like it."""


@dataclass(frozen=True)
class Keyring:
    """Keys by name. A name says nothing of its key, and is the same wherever the key is."""

    current: str
    """Name of the key of jobs that start now."""
    keys: Mapping[str, bytes]
    where: str
    """The Secret, as `namespace/name`."""

    @classmethod
    def read(cls, secret: Mapping[str, Any], where: str) -> Self:
        """The keys in a Secret. Raises SettingsError that names the entry which is wrong."""
        data = secret.get("data") or {}
        if CURRENT not in data:
            raise SettingsError(
                f"Secret {where}: has no entry {CURRENT!r}: put the operator's key there"
            )
        used = [CURRENT, *sorted(entry for entry in data if entry.startswith(FORMER))]
        keys = [_decoded(data[entry], f"Secret {where}, entry {entry!r}") for entry in used]
        return cls(name_of(keys[0]), {name_of(key): key for key in keys}, where)

    def token(self, job: JobObject) -> str:
        """The job's token. It can be derived at any time, so that the operator never reads the
        Secrets of jobs. Raises KeyMissingError when the job was started with another key.

        A job of a release that named no key has the one in use.
        """
        if problem := self.problem(job):
            raise KeyMissingError(problem)
        key = self.keys[job.status.token_key or self.current]
        return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()

    def problem(self, job: JobObject) -> str:
        """Why there is no token; empty when there is one."""
        name = job.status.token_key or self.current
        if name in self.keys:
            return ""
        return (
            f"the job was started with key {name}, which is not in Secret {self.where}: put it "
            f"back there, in an entry {FORMER}{name}, and restart the operator"
        )


def name_of(key: bytes) -> str:
    """The name of a key: eight hexadecimal digits, from which nobody learns the key."""
    return hmac.new(key, _NAMED, hashlib.sha256).hexdigest()[:8]


def _decoded(text: str, what: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True).strip()
    except binascii.Error as error:
        raise SettingsError(f"{what}: is not base64: {error}") from error
    if len(key) < LEAST_BYTES:
        raise SettingsError(f"{what}: has {len(key)} bytes: at least {LEAST_BYTES} are needed")
    return key
