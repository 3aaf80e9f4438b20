"""The life of a rank process, from its fork out of the template to its exit."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import os
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from regroup_trainer.agent import stacks
from regroup_trainer.agent.template_protocol import ForkRank
from regroup_trainer.protocol.channel import AgentChannel
from regroup_trainer.protocol.commit_page import CommitPage
from regroup_trainer.protocol.environment import LOG_FORMAT
from regroup_trainer.protocol.exit_codes import INTERRUPTED
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.system.child_process import name_process
from regroup_trainer.system.log_lines import Subject, begin_rank_log


@dataclass(frozen=True)
class RankStart:
    """What a forked process needs to become a rank."""

    order: ForkRank
    entry: str
    """The module whose `run` is its life."""
    directory: Path
    """The agent's private folder."""
    page: CommitPage
    environment: Mapping[str, str | None]
    """Variables that only the template has set -> the user's values; None: the user has none."""


def live(start: RankStart, output: Sequence[int]) -> int:
    """Run a rank process from start to end; returns its exit code.

    `output` are the descriptors that become its standard output and its standard error.
    """
    import torch

    _redirect(output)
    assignment = start.order.assignment
    stacks.answer(stacks.stack_file(start.directory, assignment.local_rank))
    random.seed()
    _restore(start.environment)
    torch.set_num_threads(start.order.threads)

    lines = begin_rank_log(os.environ.get(LOG_FORMAT))
    lines.subject = partial(_subject, assignment)

    def rename_to(following: Assignment) -> None:
        name_process(f"rank-{following.rank}")
        lines.subject = partial(_subject, following)

    try:
        channel = AgentChannel(assignment.channel, start.page, rename_to)
        return int(importlib.import_module(start.entry).run(assignment, channel))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        traceback.print_exc()
        return INTERRUPTED
    except BaseException:
        traceback.print_exc()
        return 1


def _subject(assignment: Assignment) -> Subject:
    record = assignment.record
    about = (record.desired.namespace, record.desired.job, str(record.number))
    return Subject(*about, rank=str(assignment.rank))


def _redirect(output: Sequence[int]) -> None:
    for descriptor, target in zip(output, (1, 2), strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdout = _text_stream(1, "<stdout>", sys.stdout)
    sys.stderr = _text_stream(2, "<stderr>", sys.stderr)
    vars(sys).update(__stdout__=sys.stdout, __stderr__=sys.stderr)  # Final, but not the template's
    _write_stack_at_crash()


def _write_stack_at_crash() -> None:
    """Only Python's: that of C, which newer Pythons add, would push the reason out of the end of
    the output that explains a failure.
    """
    if sys.version_info >= (3, 14):
        faulthandler.enable(all_threads=False, c_stack=False)
    else:
        faulthandler.enable(all_threads=False)


def _text_stream(descriptor: int, name: str, former: TextIO) -> io.TextIOWrapper:
    """A stream as Python makes it at its start. One that was made for a file would try to seek."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    raw.name = name
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=former.encoding,
        errors=former.errors,
        newline="\n",
        line_buffering=True,  # as under torchrun, which starts Python with -u
    )


def _restore(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            with contextlib.suppress(KeyError):
                del os.environ[name]
        else:
            os.environ[name] = value
