"""Jobs as they were read last, as many as fit into a bound: whoever may create jobs can make many
large ones.
"""

from __future__ import annotations

import json
from collections import OrderedDict

from regroup_operator.api.resource import Key, Object
from regroup_operator.observe.observed import AnyJob, Identity

MOST_BYTES = 48 * 1024 * 1024
"""Of memory, about. An ordinary job takes 12,000."""
_OF_A_JOB, _OF_SPEC, _OF_STATUS = 4096, 20, 3
"""Bytes of any job, and for each byte of its spec and status as JSON. They were measured: a spec is
many small objects, and what can be long in a status are texts.
"""


class ParsedJobs:
    """Remembers each job in one state. Those that were asked for last stay."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._jobs: OrderedDict[Key, tuple[Identity, AnyJob, int]] = OrderedDict()
        self.size = 0
        """Bytes of all that is remembered."""

    def get(self, key: Key, identity: Identity) -> AnyJob | None:
        """The job, where it is remembered in this state."""
        known, job, _size = self._jobs.get(key, (None, None, 0))
        if known != identity:
            return None
        self._jobs.move_to_end(key)
        return job

    def note(self, identity: Identity, job: AnyJob, document: Object) -> None:
        """Remember the job that was read from this document."""
        self.forget(job.key)
        spec, status = (len(json.dumps(document.get(part))) for part in ("spec", "status"))
        size = _OF_A_JOB + _OF_SPEC * spec + _OF_STATUS * status
        self._jobs[job.key] = identity, job, size
        self.size += size
        while self.size > self._most:
            self.forget(next(iter(self._jobs)))

    def forget(self, key: Key) -> None:
        """It is gone."""
        _identity, _job, size = self._jobs.pop(key, (None, None, 0))
        self.size -= size
