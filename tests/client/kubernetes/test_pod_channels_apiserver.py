"""Commands in pods, through a real API server to a played kubelet."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.kubeconfig import Target
from regroup.kubernetes.pod_channels import MOST_BYTES, CommandOutput
from regroup.kubernetes.pod_record import read_pods
from tests.support.kube_api import Api, Namespace
from tests.support.played_kubelet import SUCCESS, Played, exit_status, played_node

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]
SECONDS = 60.0
HEAD = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n"
FORWARDED = {
    "/metrics": HEAD.format(16) + "trainingjob_x 1\n",
    "/short": HEAD.format(99) + "trainingjob_x 1\n",
    "/other": "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/refused": "",
}
"""What a port answers, by the path."""
POURED = bytes(range(256)) * (MOST_BYTES // 128)
"""More than an answer may have; not text."""
ENDS = threading.Event()
"""Ends the command that waits."""


def command(pod: str, words: Sequence[str]) -> Played:
    """What pods of the node do: the first word says it."""
    match words[0]:
        case "fail":
            return "some", "no such file", exit_status(3)
        case "missing":
            return "", "", {"status": "Failure", "message": "exec: no such program"}
        case "flood":
            return "x" * (MOST_BYTES + 1), "", SUCCESS
        case "GET":
            return FORWARDED[words[1]], "refused" if words[1] == "/refused" else "", SUCCESS
        case "pour":
            return POURED, "checksum", SUCCESS
        case "wait":
            ENDS.wait(600)
    return f"{pod}: {' '.join(words)} é", "", SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server, played_node(server, "n1", command):
        yield server
        ENDS.set()


@pytest.fixture(scope="module")
def team(server: ApiServer) -> Namespace:
    """A namespace with a pod on the node."""
    team = Namespace.make(Api(server.kubeconfig), "team")
    spec = {"containers": [{"name": "trainer", "image": "x"}], "nodeName": "n1"}
    made = team.api.request(
        "POST", team.core("pods"), {"metadata": {"name": "gpt-w0-1"}, "spec": spec}
    )
    assert made.status == 201, made.message
    return team


def run(
    server: ApiServer, team: Namespace, *words: str, seconds: float = SECONDS, user: str = ""
) -> CommandOutput:
    api = ClusterApi(Target(kubeconfig=str(server.kubeconfig), user=user or None))
    (pod,) = read_pods([team.api.request("GET", team.core("pods/gpt-w0-1")).body])
    try:
        return api.run_in_pod(team.name, pod, words, seconds)
    finally:
        api.close()


def test_what_a_command_prints_and_how_it_ends(server: ApiServer, team: Namespace) -> None:
    done = run(server, team, "say", "a b", "&c=d")
    assert done == CommandOutput("gpt-w0-1: say a b &c=d é", "", 0)
    assert run(server, team, "fail") == CommandOutput("some", "no such file", 3)


@pytest.mark.parametrize(
    ("word", "content", "end"),
    [
        ("pour", POURED, CommandOutput("", "checksum", 0)),
        ("fail", b"some", CommandOutput("", "no such file", 3)),
    ],
)
def test_output_of_any_size_is_read_as_it_comes(
    server: ApiServer, team: Namespace, word: str, content: bytes, end: CommandOutput
) -> None:
    api = ClusterApi(Target(kubeconfig=str(server.kubeconfig)))
    (pod,) = read_pods([team.api.request("GET", team.core("pods/gpt-w0-1")).body])
    with api.stream_from_pod(team.name, pod, [word], SECONDS) as stream:
        chunks = list(stream.chunks())
    api.close()
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= 2**15
    assert stream.output == end


@pytest.mark.parametrize(
    ("word", "seconds", "sentence"),
    [
        ("missing", SECONDS, "exec: no such program"),
        ("flood", SECONDS, f"the answer has more than {MOST_BYTES} bytes"),
        ("wait", 1.0, "no answer within 1 s"),
    ],
)
def test_a_command_that_shows_nothing_is_one_sentence(
    server: ApiServer, team: Namespace, word: str, seconds: float, sentence: str
) -> None:
    with pytest.raises(ClusterError) as raised:
        run(server, team, word, seconds=seconds)
    assert str(raised.value) == (
        f"cannot open pods/exec gpt-w0-1 in namespace {team.name}: {sentence}"
    )


def test_it_runs_as_whom_as_says(server: ApiServer, team: Namespace) -> None:
    """The client of Kubernetes would run it as the user of the kubeconfig."""
    with pytest.raises(ClusterError) as raised:
        run(server, team, "say", user="edith")
    assert raised.value.status == 403
    assert 'User "edith" cannot' in str(raised.value)


def test_a_user_without_the_right_is_refused(server: ApiServer, team: Namespace) -> None:
    config = server.kubeconfig_of(Identity("mallory", "mallory"))
    api = ClusterApi(Target(kubeconfig=str(config)))
    (pod,) = read_pods([team.api.request("GET", team.core("pods/gpt-w0-1")).body])
    with pytest.raises(ClusterError, match='User "mallory" cannot'):
        api.run_in_pod(team.name, pod, ["say"], SECONDS)
    api.close()


def get(server: ApiServer, team: Namespace, path: str) -> str:
    api = ClusterApi(Target(kubeconfig=str(server.kubeconfig)))
    try:
        return api.get_of_pod(team.name, "gpt-w0-1", 8472, path, SECONDS)
    finally:
        api.close()


def test_a_port_of_a_pod_answers(server: ApiServer, team: Namespace) -> None:
    assert get(server, team, "/metrics") == "trainingjob_x 1\n"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/short", "the connection ended too early"),
        ("/other", "port 8472 does not answer as an agent does"),
        ("/refused", "refused"),
    ],
)
def test_a_port_that_does_not_answer_is_one_sentence(
    server: ApiServer, team: Namespace, path: str, why: str
) -> None:
    with pytest.raises(ClusterError) as raised:
        get(server, team, path)
    assert str(raised.value).endswith(f"in namespace {team.name}: {why}")
