"""How each example is run on this machine in the tests: the commands of its README, made shorter where they can be.

A row belongs to a folder of `examples/` and runs in it. Words in `prints` must appear in what it prints, in this order.
`{tmp}` in a command is a fresh folder; `python`, `regroup` and `torchrun` are those of the environment under test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalCommand:
    """One command of an example."""

    example: str
    command: str
    prints: tuple[str, ...]
    slow: bool = False
    """Whether it takes more than ten seconds."""


LOCAL_COMMANDS: tuple[LocalCommand, ...] = ()
