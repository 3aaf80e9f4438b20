"""Commands in containers of pods, and their ports, over a WebSocket through the API server, as
`kubectl exec` and `kubectl port-forward` reach them.

The official client has both, but not for several threads, and it does not announce to the API
server whom to impersonate.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from regroup.kubernetes.cluster_errors import ClusterError, Request, refusal, unreachable
from regroup.kubernetes.pod_record import PodRecord
from regroup_trainer.protocol.message import printable

PROTOCOL = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_DATA, _ERROR = _FIRST_FRAMES = 0, 1
"""Channels of a port."""
MOST_BYTES = 8 * 1024 * 1024
"""Of an answer. More is refused: nobody shall fill the memory of the one who asks."""
_STDERR_TAIL = 64 * 1024
"""Bytes that are kept of what a command that is streamed writes to standard error."""


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
        asked = Request("open", "pods/exec", self.namespace, self.pod)
        with _explained(asked, api, seconds):
            return self._run(asked, api, time.monotonic() + seconds)

    @contextmanager
    def streamed(self, api: Any, seconds: float) -> Iterator[CommandStream]:
        """Run it for so long at most; inside, its standard output is read as it comes. Raises
        ClusterError.
        """
        asked = Request("open", "pods/exec", self.namespace, self.pod)
        deadline = time.monotonic() + seconds
        with _explained(asked, api, seconds), _connected(api, self.path, deadline) as frames:
            yield CommandStream(asked, frames)

    def _run(self, asked: Request, api: Any, deadline: float) -> CommandOutput:
        received = _Received()
        with _connected(api, self.path, deadline) as frames:
            while not received.status:
                received.add(asked, next(frames))
        return received.output(asked)


@dataclass
class CommandStream:
    """A command that runs."""

    _asked: Request
    _frames: _Frames
    output: CommandOutput | None = None
    """Once it has ended: without its standard output, and with the end of standard error."""

    def chunks(self) -> Iterator[bytes]:
        """Yield its standard output until it ends. Raises ClusterError where it cannot be read."""
        stderr, received = b"", _Received()
        while not received.status:
            frame = next(self._frames)
            if frame[:1] == bytes([_STDOUT]):
                yield frame[1:]
            elif frame[:1] == bytes([_STDERR]):
                stderr = (stderr + frame[1:])[-_STDERR_TAIL:]
            else:
                received.add(self._asked, frame)
        text = stderr.decode(errors="replace")
        self.output = CommandOutput("", text, _exit_code(self._asked, received.status))


@dataclass(frozen=True)
class PodPort:
    """A port of a pod that speaks HTTP. Its node connects to it: no NetworkPolicy forbids that."""

    namespace: str
    pod: str
    port: int

    def get(self, api: Any, path: str, seconds: float) -> str:
        """The body of an answer with status 200. `api`: an ApiClient. Raises ClusterError."""
        asked = Request("open", "pods/portforward", self.namespace, self.pod)
        where = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/portforward?ports={self.port}"
        received = _Received()
        deadline = time.monotonic() + seconds
        with _explained(asked, api, seconds), _connected(api, where, deadline) as frames:
            for _ in _FIRST_FRAMES:  # each names the port
                next(frames)
            frames.send(b"\0GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" % path.encode())
            while not _is_whole(received.text.get(_DATA, b"")):
                received.add(asked, next(frames))
                if failed := received.text.get(_ERROR, b"").decode(errors="replace"):
                    raise ClusterError(f"cannot {asked}: {printable(failed)}")
        head, _, body = received.text[_DATA].partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ClusterError(f"cannot {asked}: port {self.port} does not answer as an agent does")
        return body.decode(errors="replace")


def _is_whole(answer: bytes) -> bool:
    """Whether an answer has come with all bytes that its head announces."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and (length is None or len(body) >= int(length[1]))


@dataclass
class _Received:
    """What has come so far, by channel."""

    text: dict[int, bytes] = field(default_factory=dict)

    @property
    def status(self) -> bytes:
        """How the command ended, as a Status object in JSON; it comes last."""
        return self.text.get(_STATUS, b"")

    def add(self, asked: Request, content: bytes) -> None:
        """Raises ClusterError for too much, and for an end that came too early."""
        if not content:
            raise ClusterError(f"cannot {asked}: the connection ended too early")
        self.text[content[0]] = self.text.get(content[0], b"") + content[1:]
        if sum(map(len, self.text.values())) > MOST_BYTES:
            raise ClusterError(f"cannot {asked}: the answer has more than {MOST_BYTES} bytes")

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


@contextmanager
def _explained(asked: Request, api: Any, seconds: float) -> Iterator[None]:
    """Raise what a WebSocket raises as a ClusterError."""
    from websocket import (
        WebSocketBadStatusException,
        WebSocketException,
        WebSocketTimeoutException,
    )

    try:
        yield
    except WebSocketBadStatusException as error:
        body = (error.resp_body or b"").decode(errors="replace")
        raise refusal(asked, error.status_code, body) from None
    except (WebSocketTimeoutException, TimeoutError):
        raise ClusterError(f"cannot {asked}: no answer within {seconds:.0f} s") from None
    except (WebSocketException, OSError) as error:
        raise unreachable(api.configuration.host, error) from None


class _Frames:
    """The frames of a WebSocket, until a deadline."""

    def __init__(self, socket: Any, deadline: float) -> None:
        self._socket, self._deadline = socket, deadline

    def __next__(self) -> bytes:
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        frame = self._socket.recv()
        return frame.encode() if isinstance(frame, str) else bytes(frame)

    def send(self, frame: bytes) -> None:
        """Send a binary message of the WebSocket."""
        self._socket.send_binary(frame)


@contextmanager
def _connected(api: Any, path: str, deadline: float) -> Iterator[_Frames]:
    socket = _connect(api, path, deadline)
    try:
        yield _Frames(socket, deadline)
    finally:
        socket.shutdown()


def _connect(api: Any, path: str, deadline: float) -> Any:
    """An open WebSocket, as the user of the ApiClient."""
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

    settings, headers = api.configuration, dict(api.default_headers)
    api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    socket: Any = WebSocket(sslopt=_tls(settings))
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
