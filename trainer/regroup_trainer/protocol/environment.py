"""The configuration that a pod of Regroup gets by environment variables."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict

from regroup_trainer.protocol.addresses import AGENT_METRICS_PORT, COORDINATOR_PORT, TOKEN_FILE
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.message import Message

ENVIRONMENT_PREFIX = "REGROUP_"
RANK_ENTRY = "regroup_trainer.rank.rank_process"
"""The module that runs a rank, unless a test has another."""


class Environment(Message):
    """Base of the classes below: the variable of field `member` is REGROUP_MEMBER, and so on."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def variable(cls, field: str) -> str:
        """The environment variable of a field. Raises KeyError for a field that does not exist."""
        cls.model_fields[field]
        return ENVIRONMENT_PREFIX + field.upper()

    @classmethod
    def read(cls, environ: dict[str, str]) -> Self:
        """Read from `os.environ`.

        Raises pydantic.ValidationError, which names what is missing or malformed.
        """
        present = {
            field: environ[cls.variable(field)]
            for field in cls.model_fields
            if cls.variable(field) in environ
        }
        return cls.model_validate(present)

    def variables(self) -> dict[str, str]:
        """The environment variables from which `read` makes an equal value."""
        return {
            self.variable(field): str(value)
            for field, value in self.model_dump(mode="json").items()
        }


class AgentEnvironment(Environment):
    """The configuration of a worker pod."""

    coordinator_url: str
    """http://host:port"""
    token_file: str = TOKEN_FILE
    namespace: str
    job: str
    member: str
    index: int
    pod: str
    node: str
    address: str
    """The pod's IP, by which others reach its store."""
    ranks: int = 1
    metrics_port: int = AGENT_METRICS_PORT
    """0: any free port."""
    termination_log: str = "/dev/termination-log"
    scratch: str = ""
    """Where the agent makes its temporary folder; empty: where TMPDIR says."""
    start: str = ""
    """Script that starts our modules in an image without them (`agent/start.py`); else empty."""
    entry: str = RANK_ENTRY
    """Module whose `run(assignment, channel) -> int` runs a rank from start to end."""


class CoordinatorEnvironment(Environment):
    """The configuration of a coordinator pod."""

    term: int
    node: str
    """The pod's node. Rank 0 runs on another one if it can."""
    token_file: str = TOKEN_FILE
    address: str = ""
    """Where to listen; empty: on all addresses of the pod."""
    port: int = COORDINATOR_PORT
    desired: str
    """JSON of the first Desired. Later ones come by PUT /v1/desired, or in the agents' hellos."""

    def first_desired(self) -> Desired:
        """The Desired in the environment. Raises pydantic.ValidationError."""
        return Desired.model_validate_json(self.desired)
