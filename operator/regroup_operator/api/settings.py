"""The operator's own configuration: environment variables, read once at the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from regroup_operator.api.names import MINOR_VERSION, OBJECT_NAME
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.errors import SettingsError

PREFIX = "REGROUP_OPERATOR_"
_PLACE = rf"^{OBJECT_NAME}/{OBJECT_NAME}$"


class Settings(BaseModel):
    """Field `metrics_port` is the variable REGROUP_OPERATOR_METRICS_PORT, and so on. Lists and
    objects are JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainer_image: str
    """Image of the workers of jobs that name no image."""
    trainer_python: Annotated[str, Field(pattern=rf"^({MINOR_VERSION.pattern})?$")] = ""
    """Minor version of the Python in that image, as 3.13; empty: it is not known."""
    coordinator_image: str
    """Image of coordinators: the operator's own."""
    key_secret: Annotated[str, Field(pattern=_PLACE)]
    """The Secret with the key that the jobs' tokens are derived from, as `namespace/name`. The
    operator makes it where there is none.
    """
    lease: Annotated[str, Field(pattern=_PLACE)]
    """The Lease by which one replica of the operator leads, as `namespace/name`."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty: all."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /metrics."""
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8081
    """Port of /healthz and /livez."""
    image_pull_policy: str = "IfNotPresent"
    """imagePullPolicy of coordinators and workers."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the jobs' namespaces."""
    coordinator_resources: dict[str, Any] = Field(
        default={"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}
    )
    """ResourceRequirements of coordinators."""
    coordinators_grow: bool = True
    """Whether those of a large job get more of each of these amounts, as it needs."""
    network_peers: tuple[dict[str, Any], ...] = ()
    """NetworkPolicyPeers (operator, metrics scraper) that may reach the ports of status and
    metrics. Empty: all may.
    """
    max_workers: Annotated[int, Field(ge=1, le=DEFAULT_MAX_WORKERS)] = DEFAULT_MAX_WORKERS
    """Most workers of a job, spares included. Above the default, the status of a job would not fit
    into an object of the API server.
    """
    otlp_endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s@]+)?$")] = ""
    """Where coordinators send traces, by OTLP over HTTP; empty: nowhere. It reaches all tenants, so
    it has no credentials. The operator's own are sent where OTEL_EXPORTER_OTLP_ENDPOINT says.
    """
    log_level: str = "INFO"
    """Level of Python's logging."""
    log_format: Annotated[str, Field(pattern=r"^(text|json)$")] = "text"
    """How coordinators and workers write their logs. The operator's own follows REGROUP_LOG_FORMAT.
    """

    @field_validator("trainer_image", "coordinator_image")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("must name an image")
        return value

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read from `os.environ`. Raises SettingsError, which names each wrong variable."""
        given: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            text = environ.get(PREFIX + name.upper(), "")
            if text:
                given[name] = _value(name, text) if field.annotation not in (str, int) else text
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = [
                f"{PREFIX}{str(e['loc'][0]).upper()}: {e['msg']}"
                for e in error.errors(include_url=False)
            ]
            raise SettingsError("; ".join(problems)) from error


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}{name.upper()}: not JSON ({error}): {text!r}") from error
