"""An admission webhook of a test, which the API server asks about each pod of a namespace."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from devcluster.pki import Authority
from tests.support.kube_api import Json, Namespace
from tests.support.loopback_server import LoopbackServer, QuietHandler
from tests.support.waiting import wait_until

NAME = "pods.policy.example.com"
Verdict = list[Json] | str
"""A JSON patch of a pod; a text refuses it, and says why."""
Review = Callable[[Json], Verdict]
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class AdmissionWebhook(LoopbackServer):
    """Answers by `review`, over TLS. A context manager."""

    def __init__(self, namespace: Namespace, review: Review, port: int = 0) -> None:
        self.review = review
        self.asked: list[tuple[float, str]] = []
        """Monotonic time and name of each pod that is not only a trial."""
        self._namespace = namespace
        self._authority = Authority(namespace.api.kubeconfig.parent / "pki")
        super().__init__("127.0.0.1", port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The certificate of the API server, which is on loopback too.
        context.load_cert_chain(self._authority.crt("apiserver"), self._authority.key("apiserver"))
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    @property
    def port(self) -> int:
        """Where it serves."""
        return int(self._server.server_port)

    def _handler(webhook) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                text = json.dumps(webhook._answer(json.loads(body)["request"])).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        return Handler

    def _answer(self, request: Json) -> Json:
        pod = request["object"]
        if not request.get("dryRun"):
            self.asked.append((time.monotonic(), pod["metadata"]["name"]))
        verdict = self.review(pod)
        answer: Json = {"uid": request["uid"], "allowed": not isinstance(verdict, str)}
        if isinstance(verdict, str):
            answer["status"] = {"code": 403, "message": verdict}
        else:
            patch = base64.b64encode(json.dumps(verdict).encode()).decode()
            answer |= {"patchType": "JSONPatch", "patch": patch}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


@contextmanager
def admission(namespace: Namespace, port: int) -> Iterator[None]:
    """Inside, the API server asks the webhook at a port of this machine about each new pod of the
    namespace, and refuses the pod while nothing answers there.
    """
    authority = Authority(namespace.api.kubeconfig.parent / "pki")
    webhook = {
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
        },
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace.name},
        "webhooks": [webhook],
    }
    request = namespace.api.request
    made = request("POST", _CONFIGURATIONS, body)
    assert made.status == 201, made.message
    try:
        wait_until("an API server that asks the webhook", lambda: _is_asked(namespace))
        yield
    finally:
        request("DELETE", f"{_CONFIGURATIONS}/{namespace.name}")


def _is_asked(namespace: Namespace) -> bool:
    """Whether a pod is refused, or comes otherwise than it was asked for."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial"},
        "spec": {"containers": [{"name": "trainer", "image": "a"}]},
    }
    answer = namespace.api.request("POST", namespace.core("pods?dryRun=All"), pod)
    sent = pod["spec"]["containers"]  # type: ignore[index]
    return answer.status != 201 or answer.body["spec"]["containers"][0]["image"] != sent[0]["image"]
