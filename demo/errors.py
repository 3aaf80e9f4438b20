"""What can go wrong in the demo; every message says what to do or what was not as promised."""

from __future__ import annotations


class DemoError(Exception):
    """Base: the demo ends with this sentence and a non-zero exit code."""


class MissingError(DemoError):
    """Something that the demo needs is not on this machine."""


class QueryError(DemoError):
    """Prometheus did not accept an expression, or did not answer."""


class NoDataError(DemoError):
    """A query of the dashboard returned nothing, though the run must have made data for it."""


class StoryError(DemoError):
    """Something did not happen in its time."""
