"""The errors of the demo. Every message names the problem and what to do."""

from __future__ import annotations


class DemoError(Exception):
    """Base of the errors that end the demo. The message is printed and the exit code is
    not zero.
    """


class MissingError(DemoError):
    """This machine lacks something that the demo needs."""


class QueryError(DemoError):
    """Prometheus refused an expression or did not answer."""


class MonitorError(DemoError):
    """A monitor of the chart has a field that the demo does not know."""


class NoDataError(DemoError):
    """A query of the dashboard returned no data. The run must have made data for it."""


class StoryError(DemoError):
    """An expected event did not happen before its deadline."""
