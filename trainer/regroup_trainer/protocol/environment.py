"""What a pod of Regroup finds: ports and paths, the same in all, and its environment variables."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Self

from pydantic import ConfigDict, ValidationError

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.message import Message, describe_invalid

COORDINATOR_PORT = 8471
AGENT_METRICS_PORT = 8472
VOLUME_MOUNT = "/regroup/volume"
TOKEN_FILE = "/regroup/token/token"
DIRECTORY_VARIABLE = "REGROUP_DIRECTORY"
"""Gives a user's script the path of the job's folder on the volume, which may not exist yet."""
ENVIRONMENT_PREFIX = "REGROUP_"
LOG_FORMAT: Final = "REGROUP_LOG_FORMAT"
"""With `json`, each line that a program of Regroup logs is a JSON object."""
OTHER_DATA: Final = "REGROUP_OTHER_DATA"
"""With 1, a run goes on with another data set of the same size."""
PEAK_TFLOPS: Final = "REGROUP_PEAK_TFLOPS"
"""The peak of one device in 10^12 operations per second."""
TRUST_CHECKPOINTS: Final = "REGROUP_TRUST_CHECKPOINTS"
"""With 1, a program reads objects which an older release saved."""
USER_VARIABLES = (OTHER_DATA, PEAK_TFLOPS, TRUST_CHECKPOINTS)
"""Those that users set for their ranks. All others of the prefix are set by Regroup."""
_SET_BY_OPERATOR = (
    "the operator sets these variables (leave them out of spec.template; run operator and pods of "
    "one release)"
)
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

        Raises ConfigurationError, which names the variables that are missing or malformed.
        """
        present = {
            field: environ[cls.variable(field)]
            for field in cls.model_fields
            if cls.variable(field) in environ
        }
        try:
            return cls.model_validate(present)
        except ValidationError as error:
            names = {field: cls.variable(field) for field in cls.model_fields}
            raise ConfigurationError(
                f"{describe_invalid(error, names)}: {_SET_BY_OPERATOR}"
            ) from error

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
    job_uid: str = ""
    """metadata.uid of the TrainingJob, by which its traces are known; empty: it has none."""
    kept_file: str = ""
    """Where the process keeps what the next one in its container goes on with; empty: nowhere."""

    def first_desired(self, kept: str = "") -> Desired:
        """What to begin with: what a former process has `kept`, and otherwise what the environment
        says. Raises ConfigurationError.
        """
        with contextlib.suppress(ValidationError):
            return Desired.model_validate_json(kept)
        try:
            return Desired.model_validate_json(self.desired)
        except ValidationError as error:
            what = f"{self.variable('desired')}: {describe_invalid(error)}"
            raise ConfigurationError(f"{what}: {_SET_BY_OPERATOR}") from error


def read_token(path: str) -> str:
    """The job's token. Raises ConfigurationError when the file cannot be read."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigurationError(
            f"cannot read the job's token from {path} ({why}): the pod mounts it from the job's "
            "Secret, which the operator makes again when it is missing"
        ) from error
