"""Commands in containers of pods, over a WebSocket through the API server, as `kubectl exec` runs
them.

The official client has that too, but not for several threads, and it does not say to the API server
whom to impersonate.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from regroup.kubernetes.cluster_errors import ClusterError, Request, refusal, unreachable
from regroup.kubernetes.pod_record import PodRecord
from regroup_trainer.protocol.message import printable

PROTOCOL = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
MOST_BYTES = 8 * 1024 * 1024
"""A command that prints more is refused: nobody shall fill the memory of the one who asks."""


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


class CommandRunner(Protocol):
    """What runs commands in pods: ClusterApi."""

    def run_in_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> CommandOutput:
        """Run a command in the main container. Raises ClusterError."""


@dataclass(frozen=True)
class PodCommand:
    """A command, and the container in which it runs."""

    namespace: str
    pod: str
    container: str
    words: Sequence[str]

    @property
    def path(self) -> str:
        """Where the API server takes it."""
        asked = [("container", self.container), ("stdout", "true"), ("stderr", "true")]
        query = urlencode([*asked, *(("command", word) for word in self.words)])
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/exec?{query}"

    def run(self, api: Any, seconds: float) -> CommandOutput:
        """Run it. `api`: an ApiClient. Raises ClusterError, also when it takes longer."""
        from websocket import (
            WebSocketBadStatusException,
            WebSocketException,
            WebSocketTimeoutException,
        )

        asked = Request("get", "pods/exec", self.namespace, self.pod)
        try:
            return self._run(asked, api, time.monotonic() + seconds)
        except WebSocketBadStatusException as error:
            body = (error.resp_body or b"").decode(errors="replace")
            raise refusal(asked, error.status_code, body) from None
        except (WebSocketTimeoutException, TimeoutError):
            raise ClusterError(f"cannot {asked}: no answer within {seconds:.0f} s") from None
        except (WebSocketException, OSError) as error:
            raise unreachable(api.configuration.host, error) from None

    def _run(self, asked: Request, api: Any, deadline: float) -> CommandOutput:
        socket = _connect(api, self.path, deadline)
        try:
            received = _Received()
            while not received.status:
                socket.settimeout(max(0.001, deadline - time.monotonic()))
                received.add(asked, socket.recv())
        finally:
            socket.close(timeout=0)
        return received.output(asked)


@dataclass
class _Received:
    """What has come so far, by channel."""

    text: dict[int, bytes] = field(default_factory=dict)

    @property
    def status(self) -> bytes:
        """How the command ended, as a Status object in JSON; it comes last."""
        return self.text.get(_STATUS, b"")

    def add(self, asked: Request, frame: bytes | str) -> None:
        """Raises ClusterError for too much, and for an end without a status."""
        content = frame.encode() if isinstance(frame, str) else frame
        if not content:
            raise ClusterError(f"cannot {asked}: the connection ended before the command")
        self.text[content[0]] = self.text.get(content[0], b"") + content[1:]
        if sum(map(len, self.text.values())) > MOST_BYTES:
            raise ClusterError(f"cannot {asked}: the command printed more than {MOST_BYTES} bytes")

    def output(self, asked: Request) -> CommandOutput:
        """Raises ClusterError for a command that could not be started."""
        stdout, stderr = (
            self.text.get(channel, b"").decode(errors="replace") for channel in (_STDOUT, _STDERR)
        )
        return CommandOutput(stdout, stderr, _exit_code(asked, self.status))


def _exit_code(asked: Request, status: bytes) -> int:
    try:
        value = json.loads(status)
        if value["status"] == "Success":
            return 0
        if value.get("reason") == "NonZeroExitCode":
            causes = value["details"]["causes"]
            return next(int(c["message"]) for c in causes if c["reason"] == "ExitCode")
        message = printable(str(value.get("message") or value.get("reason")))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        message = printable(status.decode(errors="replace"))
    raise ClusterError(f"cannot {asked}: {message}")


def _connect(api: Any, path: str, deadline: float) -> Any:
    """An open WebSocket, as the user of the ApiClient."""
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

    settings, headers = api.configuration, dict(api.default_headers)
    api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    socket = WebSocket(sslopt=_tls(settings))
    options = {
        "header": [f"{name}: {value}" for name, value in headers.items()],
        "subprotocols": [PROTOCOL],
        "timeout": max(0.001, deadline - time.monotonic()),
    }
    if settings.proxy or settings.proxy_headers:
        options = websocket_proxycare(options, settings, path, headers)
    socket.connect("ws" + settings.host.removeprefix("http") + path, **options)
    return socket


def _tls(settings: Any) -> dict[str, Any]:
    """What the other requests of the client check and show."""
    given = {
        "ca_certs": settings.ssl_ca_cert,
        "certfile": settings.cert_file,
        "keyfile": settings.key_file,
        "server_hostname": settings.tls_server_name,
    }
    known = {name: value for name, value in given.items() if value}
    if not settings.verify_ssl:
        return {**known, "cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    by_name = settings.assert_hostname
    return {**known, **({} if by_name is None else {"check_hostname": bool(by_name)})}
