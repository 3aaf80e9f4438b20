# ruff: noqa: ARG002
"""Storages for kopf that store nothing: we have no change handlers whose progress or last seen spec
could matter.

This keeps kopf's annotations off the objects, and halves the cost of an event.
"""

from __future__ import annotations

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """Remembers no last seen spec: we have no change handlers."""

    def fetch(self, *, body: kopf.Body) -> None:
        """kopf calls it."""
        return

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """kopf calls it."""
        return


class NoProgress(kopf.ProgressStorage):
    """Remembers no progress of handlers: ours have none."""

    def fetch(self, *, key: Any, body: kopf.Body) -> None:
        """kopf calls it."""
        return

    def store(self, *, key: Any, record: Any, body: kopf.Body, patch: kopf.Patch) -> None:
        """kopf calls it."""
        return

    def purge(self, *, key: Any, body: kopf.Body, patch: kopf.Patch) -> None:
        """kopf calls it."""
        return

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: Any) -> None:
        """kopf calls it."""
        return

    def clear(self, *, essence: Any) -> Any:
        """kopf calls it."""
        return essence
