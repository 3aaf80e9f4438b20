"""How long does `kubectl trainingjob --help` take, in seconds and as a multiple of a bare Python?

    make bench NAME=command_help [ARGS=--quick]

Each run starts the interpreter twice in turn: for `pass`, and for the help of the command. The goal
of 0.3 s is for a quiet machine; the ratio says more on one that is busy. Verbs import late what the
help does not need: tests/client/cli/test_kubectl_trainingjob.py counts the modules.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness import Goal, Plan, Values, command

GOAL_SECONDS = 0.3
PROGRAMS = {
    "bare": "pass",
    "help": "import sys; sys.argv[1:] = ['--help']; "
    "from regroup.cli.kubectl_trainingjob import main; main()",
}
UNITS = {"help_seconds": "s", "bare_seconds": "s", "ratio": "x bare"}


def plan(quick: bool) -> Plan:
    """Twenty runs; a quick one has two."""
    goals = {"help_seconds": Goal(GOAL_SECONDS)}
    return Plan(
        "command_help",
        ("--help",),
        ("regroup",),
        UNITS,
        2 if quick else 20,
        goals=lambda _case, _subject: goals,
    )


def measure(_case: str, _subject: str) -> Values:
    """One start of each."""
    bare, help_ = (seconds_of(PROGRAMS[name]) for name in ("bare", "help"))
    return {"help_seconds": help_, "bare_seconds": bare, "ratio": help_ / bare}


def seconds_of(program: str) -> float:
    """From the start of an interpreter to its end. Raises CalledProcessError."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


main = command(plan, measure)

if __name__ == "__main__":
    main()
