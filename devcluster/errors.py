"""What goes wrong in devcluster, as sentences that say what to do."""

from __future__ import annotations


class DevclusterError(Exception):
    """Base of all errors that are shown to the user without a traceback."""


class UnsupportedMachineError(DevclusterError):
    """This machine can't carry a cluster: no root, no network namespaces, no cgroups, no Go."""


class CommandFailedError(DevclusterError):
    """A program that devcluster ran ended with an error."""

    def __init__(self, command: str, code: int, message: str) -> None:
        super().__init__(f"`{command}` ended with {code}: {message.strip() or 'it said nothing'}")
        self.code = code
        self.message = message


class NoSuchClusterError(DevclusterError):
    """There is no cluster of that name."""


class NoSuchNodeError(DevclusterError):
    """The cluster has no node of that name."""


class DeadlineError(DevclusterError):
    """Something that should have become true did not within its deadline."""
