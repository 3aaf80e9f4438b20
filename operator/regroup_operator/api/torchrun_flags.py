"""The command line of torchrun, as a container's command: each flag is applied, or refused by name.
Pure.

Flags that say what to start and how often count as the fields of the spec that say the same. Flags
that say where agents meet are refused: the job brings its own rendezvous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from regroup_operator.api.launcher_flags import (
    Flag,
    FlagTable,
    FoundFlag,
    LaunchFlags,
    read_number,
)

MEETING = "the job brings its own rendezvous"
MOST_RANKS = 1024
MOST_WORKERS = 100_000
MONITOR_INTERVAL = Flag(
    "stock",
    form=re.compile(r"(?=\.?\d)\d{0,9}\.?\d{0,9}(?:e[+-]?\d)?", re.ASCII | re.IGNORECASE),
    instead="give seconds, such as 0.1",
)
TEE = Flag(
    "output",
    form=re.compile(r"[0-3]|\d:[0-3](?:,\d:[0-3])*", re.ASCII),
    instead="give 0 to 3, or such a number for each local rank: 0:3,1:1",
)
_LIST_OF_RANKS = re.compile(r"\d{1,4}(?:,\d{1,4})*", re.ASCII)
_LIST_OF_SIGNALS = re.compile(r"SIG[A-Z0-9]+(?:,SIG[A-Z0-9]+)*", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_BINDINGS = ("node", "socket", "exclusive", "core-complex")
_FLAGS: dict[str, Flag] = {
    "nproc-per-node": Flag("ranks"),
    "nnodes": Flag("nodes"),
    "standalone": Flag("nodes", takes_value=False),
    "max-restarts": Flag("restarts"),
    "role": Flag("role"),
    "module": Flag("module", takes_value=False),
    "run-path": Flag("same", takes_value=False),
    "rdzv-backend": Flag("same", values=("c10d",), instead=MEETING),
    "start-method": Flag("same", values=("spawn",), instead="ranks are processes of their own"),
    "monitor-interval": MONITOR_INTERVAL,
    "log-dir": Flag("stock"),
    "redirects": TEE,
    "tee": TEE,
    "log-line-prefix-template": Flag("output"),
    "local-ranks-filter": Flag(
        "stock", form=_LIST_OF_RANKS, instead="give local ranks with commas between them: 0,1"
    ),
    "duplicate-stdout-filters": Flag("output"),
    "duplicate-stderr-filters": Flag("output"),
    "logs-specs": Flag("output"),
    "event-log-handler": Flag("stock"),
    "numa-binding": Flag("stock", values=_BINDINGS, instead=f"give one of {', '.join(_BINDINGS)}"),
    "signals-to-handle": Flag(
        "stock", form=_LIST_OF_SIGNALS, instead="give signals with commas between them: SIGTERM"
    ),
    "shutdown-timeout": Flag("stock", form=_SECONDS, instead="give whole seconds, such as 30"),
    "print-completion": Flag("stock", takes_value=False),
    "virtual-local-rank": Flag("stock", takes_value=False),
    "no-python": Flag("refused", takes_value=False, instead="give a Python script"),
    "help": Flag("refused", takes_value=False, instead="it starts nothing"),
    "rdzv-id": Flag("refused", instead=MEETING),
    "rdzv-endpoint": Flag("refused", instead=MEETING),
    "rdzv-conf": Flag("refused", instead=MEETING),
    "node-rank": Flag("refused", instead=MEETING),
    "master-addr": Flag("refused", instead=MEETING),
    "master-port": Flag("refused", instead=MEETING),
    "local-addr": Flag("refused", instead=MEETING),
}
"""torchrun's flags (torch 2.15), without the dashes."""
TORCHRUN = FlagTable(
    command=("torchrun",),
    flags=_FLAGS,
    short={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
    abbreviates=True,
)


def read_torchrun(words: Sequence[str]) -> tuple[LaunchFlags, list[str]]:
    """Read what follows `torchrun`; returns the flags, and the script with its arguments.

    Raises FlagError, which names a flag that is not supported.
    """
    found, rest = TORCHRUN.read(words)
    last = TORCHRUN.last(found)
    ranks = _ranks(last["ranks"]) if "ranks" in last else None
    nodes = _nodes(last["nodes"]) if "nodes" in last else None
    flags = replace(TORCHRUN.common(found), ranks=ranks, nodes=nodes)
    return flags, [*(["-m"] if "module" in last else []), *rest]


def _ranks(found: FoundFlag) -> int | Literal["auto"]:
    if found.value in ("gpu", "auto"):
        return "auto"
    return read_number(found, 1, MOST_RANKS, ", or auto: one rank for each GPU")


def _nodes(found: FoundFlag) -> tuple[int, int]:
    if found.name == "standalone":
        return 1, 1
    fewest, colon, most = found.value.partition(":")
    numbers = (fewest, most) if colon else (fewest, fewest)
    otherwise = ", or the fewest and the most workers: 2:4"
    low, high = (
        read_number(found._replace(value=number), 1, MOST_WORKERS, otherwise) for number in numbers
    )
    return low, high
