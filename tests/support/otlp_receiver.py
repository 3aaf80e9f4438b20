"""Takes what is exported over OTLP, judged by OpenTelemetry's own messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.loopback_server import LoopbackServer, QuietHandler


def parse_request(body: bytes) -> ExportTraceServiceRequest:
    """The request. Raises where it is none: an unknown field, a wrong type, a wrong id.

    OTLP writes ids in hexadecimal, where JSON of other messages has Base64.
    """
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
                    raw = bytes.fromhex(span.get(name, ""))
                    assert len(raw) == size or (name == "parentSpanId" and not raw)
                    span[name] = base64.urlsafe_b64encode(raw).decode()
    request = ExportTraceServiceRequest()
    json_format.ParseDict(document, request)
    return request


def spans_in(request: ExportTraceServiceRequest) -> list[Span]:
    """Its spans."""
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def values_of(attributes: Any) -> dict[str, object]:
    """Attributes as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def seconds_of(span: Span) -> float:
    """How long it took."""
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def paths_of(spans: list[Span]) -> set[str]:
    """The spans of one trace by the names of those that they are parts of. Fails unless each has a
    parent that is there and no less long, but for one.
    """
    by_id = {span.span_id: span for span in spans}
    assert len({span.trace_id for span in spans}) == 1
    assert len(by_id) == len(spans)
    assert sum(not span.parent_span_id for span in spans) == 1

    def path(span: Span) -> str:
        if not span.parent_span_id:
            return span.name
        return f"{path(by_id[span.parent_span_id])}/{span.name}"

    return {path(span) for span in spans}


def traces_of(spans: list[Span]) -> dict[str, list[Span]]:
    """Spans of several traces by `regroup.generation` of their root."""
    found = {}
    for root in [span for span in spans if not span.parent_span_id]:
        of_trace = [span for span in spans if span.trace_id == root.trace_id]
        found[str(values_of(root.attributes)["regroup.generation"])] = of_trace
    return found


class OtlpReceiver(LoopbackServer):
    """Keeps what it gets, and answers with `status`; while `hangs`, not at all."""

    def __init__(self, status: int = 200, *, hangs: bool = False) -> None:
        self.status = status
        self.hangs = hangs
        self.paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.requests: list[ExportTraceServiceRequest] = []
        super().__init__("127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[Span]:
        """All that it has taken."""
        return [span for request in [*self.requests] for span in spans_in(request)]

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append(self.path)
                receiver.headers.append(dict(self.headers))
                if receiver.hangs:
                    receiver._ends.wait(60)
                    return
                if receiver.status < 300:
                    receiver.requests.append(parse_request(body))
                self.send_response(receiver.status)
                self.end_headers()

        return Handler
