"""What a pod of Regroup is told by environment variables. Torch-free and Kubernetes-free."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict

from regroup_trainer.contract import AGENT_METRICS_PORT, COORDINATOR_PORT, TOKEN_FILE, Desired, Message

ENVIRONMENT_PREFIX = "REGROUP_"


class Environment(Message):
    """Base of what a pod gets by environment variables: field `member` is REGROUP_MEMBER, and so on."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def variable(cls, field: str) -> str:
        """The environment variable of a field. Raises KeyError for a field that does not exist."""
        cls.model_fields[field]
        return ENVIRONMENT_PREFIX + field.upper()

    @classmethod
    def read(cls, environ: dict[str, str]) -> Self:
        """Read from `os.environ`. Raises pydantic.ValidationError, which names what is missing or malformed."""
        present = {field: environ[cls.variable(field)] for field in cls.model_fields if cls.variable(field) in environ}
        return cls.model_validate(present)

    def variables(self) -> dict[str, str]:
        """The inverse of `read`."""
        return {self.variable(field): str(value) for field, value in self.model_dump(mode="json").items()}


class AgentEnvironment(Environment):
    """Of a worker pod."""

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
    """The pod's IP, under which others reach its store."""
    ranks: int = 1
    metrics_port: int = AGENT_METRICS_PORT
    """0: any free port."""
    termination_log: str = "/dev/termination-log"
    start: str = ""
    """Script that starts our modules in an image that does not have them (`agent/start.py`); empty: they are there."""
    entry: str = "regroup_trainer.rank"
    """Module whose `run(assignment, channel) -> int` is the life of a rank."""


class CoordinatorEnvironment(Environment):
    """Of a coordinator pod."""

    term: int
    node: str
    """Rank 0 goes to another node where there is one."""
    token_file: str = TOKEN_FILE
    address: str = ""
    """Where to listen; empty: on all addresses of the pod."""
    port: int = COORDINATOR_PORT
    desired: str
    """JSON of the first Desired; later ones come by PUT /v1/desired or from the agents' echoes."""

    def first_desired(self) -> Desired:
        """The Desired in the environment."""
        return Desired.model_validate_json(self.desired)
