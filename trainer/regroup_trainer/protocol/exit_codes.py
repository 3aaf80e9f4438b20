"""Exit codes of processes and containers that have a meaning."""

from __future__ import annotations

from regroup_trainer.errors import ConfigurationError, PortTakenError

WRONG_USAGE = ConfigurationError.exit_code
"""A command line or a configuration is wrong: another try ends the same way."""
PEER_LOST_EXIT_CODE = 75
"""A rank ends with it when a collective failed because a peer went away (EX_TEMPFAIL of
sysexits.h).
"""
PORT_TAKEN_EXIT_CODE = PortTakenError.exit_code
"""Rank 0 of a script ends with it when another process was quicker to take the port that was chosen
for the script.
"""
TEMPLATE_LOST = 70
"""The template process of an agent ended, and all its ranks with it (EX_SOFTWARE of sysexits.h)."""
WAITS_IN_VAIN = 76
"""Of the store of torchrun: a worker waits for others that have ended well."""
NOT_EXECUTABLE = 126
"""A shell or a container runtime cannot execute the command."""
NOT_FOUND = 127
"""A shell or a container runtime cannot find the command."""
INTERRUPTED = 130
"""128 + SIGINT."""
KILLED = 137
"""128 + SIGKILL."""
TERMINATED = 143
"""128 + SIGTERM."""
HOPELESS_EXIT_CODES = {
    WRONG_USAGE: "an error that would come again",
    NOT_EXECUTABLE: "the command cannot be executed",
    NOT_FOUND: "the command was not found",
}
"""Exit codes that another try cannot mend, and why: the job fails at once."""
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
"""The signals of Linux that end processes. What decides is pure, and has no module `signal`."""
_HINTS = {
    6: "native code gave up",
    7: "is shared memory full?",
    9: "out of memory?",
    11: "a crash in native code",
}


def describe_signal(number: int) -> str:
    """The name of a signal, and what usually sends it."""
    name, hint = SIGNALS.get(number, f"signal {number}"), _HINTS.get(number)
    return f"{name} ({hint})" if hint else name


def describe_exit(code: int | None) -> str:
    """An exit code in words. Those of processes below zero, and of shells and containers above 128,
    stand for signals.
    """
    if code is None:
        return "an unknown exit code"
    if code < 0:
        return describe_signal(-code)
    return f"exit code {code}" + (
        f": {describe_signal(code - 128)}" if code - 128 in SIGNALS else ""
    )
