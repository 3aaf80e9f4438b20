"""Remembers which jobs have lost something, so that memory stays bounded and no namespace is
forgotten for what happens in another.
"""

from __future__ import annotations

from regroup_operator.api.resource import Key


class RecentLosses:
    """The keys of at most `limit` jobs. Where there are more, the namespace with the most of them
    forgets its oldest: a tenant may make up jobs, and lose their pods.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._of: dict[str, dict[Key, None]] = {}
        """Namespace -> its jobs, the newest last."""

    def __len__(self) -> int:
        return self._count

    def add(self, job: Key) -> None:
        """Remember a job as the newest one."""
        jobs = self._of.setdefault(job[0], {})
        self._count += job not in jobs
        jobs.pop(job, None)
        jobs[job] = None
        if self._count > self._limit:
            largest = max(self._of.values(), key=len)
            del largest[next(iter(largest))]
            self._count -= 1

    def take(self) -> list[Key]:
        """All of them, which are forgotten: those of the namespace with the fewest first."""
        taken = [job for jobs in sorted(self._of.values(), key=len) for job in jobs]
        self._of.clear()
        self._count = 0
        return taken
