"""The errors of devcluster. Every message says what to do."""

from __future__ import annotations


class DevclusterError(Exception):
    """Base of all errors that are shown without a traceback."""


class UnsupportedMachineError(DevclusterError):
    """This machine cannot run a cluster: no root, no network namespaces, no cgroups or no Go."""


class CommandFailedError(DevclusterError):
    """A program that devcluster ran failed."""

    def __init__(self, command: str, code: int, message: str) -> None:
        super().__init__(f"`{command}` ended with {code}: {message.strip() or 'no error output'}")
        self.code = code
        self.message = message


class NoSuchClusterError(DevclusterError):
    """No cluster has this name."""


class NoSuchNodeError(DevclusterError):
    """The cluster has no node with this name."""


class DeadlineError(DevclusterError):
    """A condition did not become true before its deadline."""
