"""What users may do with TrainingJobs, on a real API server with the roles of the chart, and what
the chart's admission policy takes from them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.apiserver import ApiServer
from devcluster.processes import run
from regroup_operator.api.resource import API_VERSION, KIND, PLURAL
from tests.support.kube_api import ROOT, Answer, Api, Json, Namespace
from tests.support.operator_process import LEASE, RELEASE, apply
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

ROLES = {"viola": "view", "edith": "edit", "adam": "admin"}
RULES = "/apis/authorization.k8s.io/v1/namespaces/{}/localsubjectaccessreviews"


@pytest.fixture(scope="module")
def team() -> Iterator[Namespace]:
    """A namespace with a user of each role, beside another; the chart with its policy is there."""
    with ApiServer(controllers=True) as server:
        api = Api(server.kubeconfig)
        for name in (RELEASE, "team", "others"):
            apply(api, "create", "namespace", name)
        settings = json.dumps({"enabled": True, "serviceAccounts": ["default", "trainer"]})
        chart = (str(ROOT / "charts/regroup"), "--skip-tests", "--namespace", RELEASE)
        policy = ("--set-json", f"admissionPolicy={settings}")
        rendered = run([server.bin / "helm", "template", "regroup", *chart, *policy])
        crds = [d for d in yaml.safe_load_all(rendered) if d and d["kind"].startswith("CustomRes")]
        apply(api, "create", "-f", "-", stdin=yaml.safe_dump_all(crds))
        definition = f"/apis/{API_VERSION}/{PLURAL}"
        wait_until("the definition", lambda: api.request("GET", definition).status == 200)
        apply(api, "apply", "-f", "-", stdin=rendered)
        for user, role in ROLES.items():
            binding = ("rolebinding", role, f"--clusterrole={role}", f"--user={user}")
            apply(api, "create", *binding, "--namespace", "team")
        wait_until("the roles", lambda: may(api, "edith", "create", PLURAL), seconds=60)
        team = Namespace(api, "team")
        wait_until("the policy", lambda: refused(team, template(hostile="secret")), seconds=60)
        yield team


def may(api: Api, user: str, verb: str, what: str, where: str = "team") -> bool:
    resource, _, part = what.partition("/")
    attributes = {"verb": verb, "group": "regroup.dev", "resource": resource, "subresource": part}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": where},
        "spec": {"user": user, "resourceAttributes": {**attributes, "namespace": where}},
    }
    return bool(api.request("POST", RULES.format(where), review).body["status"]["allowed"])


@pytest.mark.parametrize(
    ("verb", "what", "who"),
    [
        ("get", PLURAL, "view edit admin"),
        ("list", PLURAL, "view edit admin"),
        ("watch", PLURAL, "view edit admin"),
        ("get", f"{PLURAL}/status", "view edit admin"),
        ("create", PLURAL, "edit admin"),
        ("patch", PLURAL, "edit admin"),
        ("delete", PLURAL, "edit admin"),
        ("update", f"{PLURAL}/scale", "edit admin"),
        ("patch", f"{PLURAL}/status", ""),
        ("update", f"{PLURAL}/finalizers", ""),
    ],
)
def test_each_role_of_kubernetes_may_do_this_in_its_own_namespace_only(
    team: Namespace, verb: str, what: str, who: str
) -> None:
    allowed = [role for user, role in ROLES.items() if may(team.api, user, verb, what)]
    assert allowed == who.split()
    assert not any(may(team.api, user, verb, what, "others") for user in ROLES)


def template(**fields: Any) -> dict[str, Any]:
    """A spec whose template has these fields of the pod; `hostile` names a row of HOSTILE."""
    spec = copy.deepcopy(SMALLEST)
    if hostile := fields.pop("hostile", None):
        return put(spec, *HOSTILE[hostile])
    return put(spec, "template", {"spec": fields})


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def volume(**fields: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **fields}]}}


TERM: dict[str, Any] = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {}}


def apart(**fields: Any) -> dict[str, Any]:
    """A template whose pods share no zone with those that the term is about."""
    return affinity("podAntiAffinity", required=[TERM | fields])


def affinity(
    kind: str, required: Sequence[dict[str, Any]] = (), preferred: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": term} for term in preferred
        ],
    }
    return {"spec": {"affinity": {kind: terms}}}


KEY_OF = {"secretKeyRef": {"name": "s", "key": "k"}}
HOSTILE: dict[str, tuple[str, Any]] = {
    "account": ("template", {"spec": {"serviceAccountName": "cluster-admin"}}),
    "old name of an account": ("template", {"spec": {"serviceAccount": "cluster-admin"}}),
    "class": ("scheduling", {"priorityClassName": "system-node-critical"}),
    "class in the template": ("template", {"spec": {"priorityClassName": "high"}}),
    "secret": ("template", container(envFrom=[{"secretRef": {"name": "s"}}])),
    "key of a secret": ("template", container(env=[{"name": "A", "valueFrom": KEY_OF}])),
    "init container": (
        "template",
        {"spec": {"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]}},
    ),
    "volume": ("template", volume(secret={"secretName": "s"})),
    "projection": ("template", volume(projected={"sources": [{"secret": {"name": "s"}}]})),
    "pull secret": ("template", {"spec": {"imagePullSecrets": [{"name": "s"}]}}),
    "driver": ("template", volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "s"}})),
    "node": ("template", volume(hostPath={"path": "/"})),
    "apart from pods of all namespaces": ("template", apart(namespaceSelector={})),
    "apart from pods of another namespace": ("template", apart(namespaces=["others"])),
    "beside pods of another namespace": (
        "template",
        affinity("podAffinity", required=[{**TERM, "namespaces": ["others"]}]),
    ),
    "rather beside them": (
        "template",
        affinity("podAffinity", preferred=[{**TERM, "namespaceSelector": {}}]),
    ),
    "rather apart from them": (
        "template",
        affinity("podAntiAffinity", preferred=[{**TERM, "namespaces": ["others"]}]),
    ),
    "no list": ("template", {"spec": {"containers": "x"}}),
    "no object": ("template", {"spec": {"volumes": ["x"]}}),
}


def dry_run(namespace: Namespace, spec: dict[str, Any]) -> Answer:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "j"}, "spec": spec}
    return namespace.api.request("POST", namespace.jobs() + "?dryRun=All", body)


def refused(namespace: Namespace, spec: dict[str, Any]) -> str:
    """The policy's sentence; empty when it has none."""
    answer = dry_run(namespace, spec)
    return answer.message if "ValidatingAdmissionPolicy 'regroup-jobs'" in answer.message else ""


@pytest.mark.parametrize("row", HOSTILE)
def test_the_policy_refuses_what_a_job_may_not_do_with_its_pods(team: Namespace, row: str) -> None:
    assert refused(team, template(hostile=row))


@pytest.mark.parametrize(
    "spec",
    [
        SMALLEST,
        template(serviceAccountName="trainer", nodeSelector={"a": "b"}),
        put(SMALLEST, "template", container(env=[{"name": "A", "value": "1"}], image="x:1")),
        put(SMALLEST, "template", container(envFrom=[{"configMapRef": {"name": "c"}}])),
        put(SMALLEST, "template", volume(persistentVolumeClaim={"claimName": "data"})),
        put(SMALLEST, "template", apart()),
    ],
)
def test_the_policy_admits_what_it_does_not_name(team: Namespace, spec: dict[str, Any]) -> None:
    answer = dry_run(team, spec)
    assert answer.status == 201, answer.message


def test_a_user_of_one_namespace_gets_nothing_in_another(team: Namespace, tmp_path: Path) -> None:
    """By kubectl, as the user: a job beside, in and for another namespace."""
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "j"}, "spec": SMALLEST}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))

    def try_in(where: str) -> str:
        try:
            apply(team.api, "create", "--as=edith", "--namespace", where, "-f", str(file))
        except AssertionError as error:
            return str(error)
        return ""

    assert "forbidden" in try_in("others")
    assert try_in("team") == ""
    for part in ("status", "finalizers"):
        patch = ("patch", "trainingjob", "j", "--as=edith", "--namespace=team", "--type=merge")
        with pytest.raises(AssertionError, match=r"forbidden|NotFound"):
            apply(team.api, *patch, f"--subresource={part}", "--patch={}")
    with pytest.raises(AssertionError, match="forbidden"):
        apply(team.api, "get", "secrets", "--as=edith", f"--namespace={RELEASE}")
    apply(team.api, "delete", "trainingjob", "j", "--as=edith", "--namespace=team", "--wait=false")


OPERATOR = f"system:serviceaccount:{RELEASE}:regroup"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"


def flow(api: Api, user: str, method: str, path: str) -> str:
    """The FlowSchema by which the API server lets a request of that user wait."""
    body: Json | None = {} if method == "PATCH" else None
    answer = api.request(method, path, body, "application/merge-patch+json", user=user)
    uid = answer.headers.get("X-Kubernetes-Pf-Flowschema-Uid")
    names = (d["metadata"]["name"] for d in api.list_all(FLOWS) if d["metadata"]["uid"] == uid)
    return str(next(names, ""))


@pytest.mark.parametrize(
    ("user", "method", "path", "name"),
    [
        (OPERATOR, "PATCH", LEASE, "regroup-leader"),
        (OPERATOR, "GET", LEASE, "regroup-leader"),
        (OPERATOR, "GET", LEASE.replace(RELEASE, "team"), "regroup"),
        (OPERATOR, "GET", f"/apis/{API_VERSION}/{PLURAL}?limit=1", "regroup"),
        (OPERATOR, "GET", "/api/v1/nodes?limit=1", "regroup"),
        (OPERATOR.replace(RELEASE, "team"), "PATCH", LEASE, "service-accounts"),
    ],
)
def test_the_operators_requests_do_not_wait_behind_those_of_tenants(
    team: Namespace, user: str, method: str, path: str, name: str
) -> None:
    wait_until(f"flow {name}", lambda: flow(team.api, user, method, path) == name, seconds=30)
