"""What the operator (or the local mode) sends to a coordinator and to agents, and what it asks
agents.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from regroup_trainer.protocol import version_one
from regroup_trainer.protocol.accelerate_settings import AccelerateLaunch
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy, TrainConfig
from regroup_trainer.protocol.ledger import FailedStarts, Ledger
from regroup_trainer.protocol.message import (
    HIGHEST_NUMBER,
    Message,
    Name,
    Text,
    WallClock,
    quote,
)

UNLIMITED_RESTARTS = 1_000_000
"""The limit that programs read where there is none."""
MOST_WORKERS = 1_000_000
"""Far beyond what an operator admits."""
MOST_SHOWN_RANKS = 256
"""That have series of their own where `rank_detail` does not say it."""
Count = Annotated[int, Field(ge=0, le=HIGHEST_NUMBER)]
Limit = Annotated[int, Field(ge=-1, le=HIGHEST_NUMBER)]
Workers = Annotated[int, Field(ge=0, le=MOST_WORKERS)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
Seconds = Annotated[float, Field(ge=0, le=86_400 * 365)]


class LastKnown(Message):
    """What the operator last knew of a job, for a coordinator that starts without members."""

    step: Count = 0
    """The highest step that was reported as committed."""
    time: WallClock
    """Wall clock of that commit, or of the report."""
    world_size: int
    """Ranks of the generation that trained."""
    generation: tuple[Count, Count] | None = None
    """The newest one that is accounted for: term and n. What a later one lost when it began is in
    no ledger yet.
    """


class Desired(Message):
    """What the job should be, as the operator last read its spec. The highest revision wins."""

    revision: Count
    """metadata.generation of the TrainingJob."""
    namespace: Name
    job: Name
    replicas: Workers
    """Workers wanted now."""
    min_replicas: Workers
    max_replicas: Workers
    replica_group_size: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
    spares: Workers = 0
    """Warm workers beyond `replicas` that wait for the place of a lost one."""
    suspend: bool = False
    checkpoint_request: Name = ""
    """Asks for a checkpoint now, once for each value; empty where nobody asks, or has the answer.
    """
    restart_request: Name = ""
    """Asks for a restart from the newest checkpoint, or as VALUE@STEP from that of a step."""
    heartbeat_milliseconds: Milliseconds = 500
    timeout_milliseconds: Milliseconds = 2000
    start_grace_seconds: Seconds = 3.0
    """How long to wait for `replicas` once `min_replicas` are there."""
    max_restarts: Limit = 10
    """Budget for application failures; -1: no limit."""
    backoff_seconds: Seconds = 1.0
    """Pause before the second application restart in a row without progress. Later ones double it.
    """
    max_backoff_seconds: Seconds = 300.0
    progress_timeout_seconds: Count = 0
    """A generation hangs after so long without a step; 0: ten times its mean step, at least 60 s.
    """
    max_hang_restarts: Limit = 3
    """Budget for hangs; -1: no limit."""
    straggler_percent: Count = 30
    """A rank that computes so much longer than the median rank is a straggler."""
    train: TrainConfig
    script: Annotated[tuple[Text, ...], Field(fail_fast=True)] = ()
    """A user's program with its arguments. The ranks run it instead of the built-in trainer."""
    accelerate: AccelerateLaunch | None = None
    """A config file of accelerate, whose settings the ranks of the program find as variables."""
    progress_pattern: Text = ""
    """Finds steps in what rank 0 of that program writes (`progress_pattern`); empty: none does."""
    rank_detail: Literal["auto", "full", "summary"] = "auto"
    """Whether agents export series of each rank, or one for all of theirs."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    resume: ResumePolicy = ResumePolicy()
    directory: Text
    """The job's own folder on the volume, as coordinator and ranks see it."""
    seed: Ledger = Ledger()
    """The ledger so far, for a coordinator that takes over."""
    last_known: LastKnown | None = None
    """Set where a generation trained when the coordinator last answered the operator. A coordinator
    that finds none of its members knows by it that training was interrupted.
    """
    failed_starts: FailedStarts | None = None
    """Of a program that may be unable to start, for a coordinator that takes over."""

    def to_json(self, protocol: int) -> str:
        """The JSON that a coordinator of this version of the protocol understands. Fields that it
        does not know are left out, and have no effect in its job.
        """
        if protocol not in version_one.DESIRED_VERSIONS:
            return self.model_dump_json()
        known: dict[str, Any] = dict.fromkeys(version_one.DESIRED_FIELDS, True)
        return self.model_dump_json(include=known | {"seed": set(version_one.LEDGER_FIELDS)})

    def shows_ranks(self, world_size: int) -> bool:
        """Whether each of so many ranks has series of its own."""
        return self.rank_detail == "full" or (
            self.rank_detail == "auto" and world_size <= MOST_SHOWN_RANKS
        )

    @property
    def restart_step(self) -> int | None:
        """The step that `restart_request` names; None: it names none. Raises ValueError."""
        _, at, step = self.restart_request.rpartition("@")
        if not at:
            return None
        if not re.fullmatch(r"[0-9]{1,15}", step):
            raise ValueError(f"{quote(step)} is no step: write VALUE or VALUE@STEP")
        return int(step)

    @property
    def workers(self) -> int:
        """Workers wanted, including spares. Their indices are below it."""
        return self.replicas + self.spares


class Lost(Message):
    """Members that the operator knows to be gone: pod deleted, evicted, or its node NotReady."""

    members: Annotated[tuple[Name, ...], Field(fail_fast=True)]
    reason: Text


class CoordinatorContact(Message):
    """Answer of GET /v1/coordinator of an agent: since when its coordinator does not answer."""

    term: Annotated[int, Field(ge=0)] | None = None
    """Of the coordinator that last welcomed it; None: none has yet."""
    unanswered_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Since it sent the first heartbeat that was not answered; 0 while heartbeats are answered."""


class CoordinatorAddress(Message):
    """PUT /v1/coordinator to an agent: where its coordinator is now. The Service in front of it was
    deleted and made again, and its former address is taken.
    """

    url: Annotated[str, Field(max_length=300)]
    """http://host:port"""

    @field_validator("url")
    @classmethod
    def _names_host_and_port(cls, url: str) -> str:
        parts = urlsplit(url)  # raises ValueError for a wrong IPv6 address, as `port` does
        if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path:
            raise ValueError(f"{url!r} is not of the form http://host:port")
        return url
