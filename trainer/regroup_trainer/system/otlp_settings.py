"""Where spans are sent: the standard variables of OpenTelemetry, as far as they fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from regroup_trainer.system.span_exporter import SpanExporter

_PREFIX = "OTEL_EXPORTER_OTLP_"
_TRACES_PATH = "/v1/traces"
_SECONDS, _MOST_SECONDS = 10.0, 60.0
_HTTP = ("", "http/json", "http/protobuf")
"""Whoever takes the second over HTTP takes the first there, too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtlpSettings:
    """How to reach who collects the spans of this process."""

    url: str
    """Of the requests: http or https, without credentials."""
    service: str
    """Name of this program among others."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """They may hold a secret, and are shown nowhere."""
    seconds: float = _SECONDS
    """For a request."""
    certificate: str = ""
    """File with the certificates to trust; empty: those of the machine."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else to report of this program."""

    @property
    def place(self) -> str:
        """Scheme, host and port, as a log may show them."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @classmethod
    def read(cls, environ: Mapping[str, str], service: str) -> Self | None:
        """Read from `os.environ`; None: no endpoint is given, or traces are switched off. Raises
        ValueError, which names the variable and no credentials.
        """
        url = _url(environ)
        exporters = environ.get("OTEL_TRACES_EXPORTER", "")
        is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        if not url or is_off or (exporters and "otlp" not in exporters.split(",")):
            return None
        _check(url, _of_traces(environ, "PROTOCOL").strip())
        return cls(
            url=url,
            service=environ.get("OTEL_SERVICE_NAME", "") or service,
            headers=_pairs(_of_traces(environ, "HEADERS")),
            seconds=_timeout(_of_traces(environ, "TIMEOUT")),
            certificate=_of_traces(environ, "CERTIFICATE"),
            attributes=_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
        )


def exporter_of(environ: Mapping[str, str], service: str) -> SpanExporter | None:
    """What sends the spans of this process; None: nothing is to. A wrong variable is logged: for
    want of a trace no training is given up.
    """
    try:
        settings = OtlpSettings.read(environ, service)
    except ValueError as error:
        log.warning("no traces are sent: %s", error)
        return None
    if settings is None:
        return None
    from regroup_trainer.system.span_exporter import SpanExporter

    log.info("traces are sent to %s", settings.place)
    return SpanExporter(settings)


def _of_traces(environ: Mapping[str, str], name: str) -> str:
    """The variable for traces, else the one for all signals."""
    return environ.get(f"{_PREFIX}TRACES_{name}") or environ.get(f"{_PREFIX}{name}", "")


def _url(environ: Mapping[str, str]) -> str:
    """The variable for all signals leaves out the path."""
    own = environ.get(f"{_PREFIX}TRACES_ENDPOINT", "").strip()
    base = environ.get(f"{_PREFIX}ENDPOINT", "").strip().rstrip("/")
    return own or (f"{base}{_TRACES_PATH}" if base else "")


def _check(url: str, protocol: str) -> None:
    """Raises ValueError. A password in the address is not quoted."""
    variable = f"{_PREFIX}ENDPOINT"
    if not _is_address(url):
        raise ValueError(f"{variable} is not of the form http://host:port or https://host:port")
    if "@" in urlsplit(url).netloc:
        raise ValueError(f"{variable}: credentials belong into {_PREFIX}HEADERS")
    if protocol not in _HTTP:
        what = "traces are sent as http/json: give the endpoint for HTTP, usually port 4318"
        raise ValueError(f"{_PREFIX}PROTOCOL is not supported: {what}")


def _is_address(url: str) -> bool:
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    with contextlib.suppress(ValueError):  # of a port, or of an IPv6 address
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    return False


def _pairs(text: str) -> dict[str, str]:
    """`a=1,b=2`, with values as in a URL. What is no pair, or no header, is left out."""
    pairs = [pair.split("=", 1) for pair in text.split(",") if "=" in pair]
    decoded = {unquote(name).strip(): unquote(value).strip() for name, value in pairs}
    return {name: value for name, value in decoded.items() if name and value.isprintable()}


def _timeout(milliseconds: str) -> float:
    with contextlib.suppress(ValueError):
        seconds = float(milliseconds) / 1000
        if seconds > 0:
            return min(seconds, _MOST_SECONDS)
    return _SECONDS
