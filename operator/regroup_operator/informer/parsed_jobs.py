"""Jobs as they were read last, as many as fit into a bound: whoever may create jobs can make many
large ones.
"""

from __future__ import annotations

import json
from collections import OrderedDict

from regroup_operator.api.resource import Key, Object
from regroup_operator.observe.observed import AnyJob, Identity

MOST_BYTES = 16 * 1024 * 1024
"""Of specs, as JSON. An ordinary one has two thousand; as Python objects they take some ten times
as much.
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
        size = len(json.dumps(document.get("spec")))
        self._jobs[job.key] = identity, job, size
        self.size += size
        while self.size > self._most:
            self.forget(next(iter(self._jobs)))

    def forget(self, key: Key) -> None:
        """It is gone."""
        _identity, _job, size = self._jobs.pop(key, (None, None, 0))
        self.size -= size
