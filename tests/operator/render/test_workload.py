"""The objects that are made of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.api.status import ProgressStatus, TrainingJobStatus
from regroup_operator.decide.job_account import merge_ledgers
from regroup_operator.errors import TemplateError
from regroup_operator.render import pods, torchrun_workload, workload
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.environment import AgentEnvironment, CoordinatorEnvironment
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.ledger import Ledger
from tests.support.operator_simulation import make_coordinator_status
from tests.support.rendering import SETTINGS, main_of, make_valid_job, make_worker, values_of


def test_a_worker_gets_all_that_its_agent_reads_from_the_environment() -> None:
    agent = AgentEnvironment.read(values_of(main_of(make_worker())))
    assert agent.index == 1
    assert agent.coordinator_url == "http://198.19.0.1:8471"
    assert agent.job == "gpt"
    assert agent.ranks == 1


def test_a_worker_gets_the_variables_of_accelerate_and_its_coordinator_the_config_file() -> None:
    def make_template(*flags: str) -> dict[str, Any]:
        command = ["accelerate", "launch", "--mixed_precision=bf16", *flags, "train.py"]
        return {"spec": {"containers": [{"name": "trainer", "command": command}]}}

    plain: dict[str, Any] = {"trainer": None, "template": make_template()}
    assert values_of(main_of(make_worker(**plain)))["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert workload.desired(make_valid_job(**plain), Ledger()).accelerate is None
    filed: dict[str, Any] = {"trainer": None, "template": make_template("--config_file=a.yaml")}
    assert "ACCELERATE_MIXED_PRECISION" not in values_of(main_of(make_worker(**filed)))
    wanted = workload.desired(make_valid_job(**filed), Ledger())
    assert wanted.accelerate is not None
    assert (wanted.accelerate.config_file, wanted.script) == ("a.yaml", ("train.py",))


def test_a_coordinator_learns_where_an_interrupted_job_stood() -> None:
    progress = ProgressStatus(step=171, updated_time="2026-01-01T00:00:10Z")
    trained = TrainingJobStatus(progress=progress, rendezvous_generation="1.4", world_size=3)
    suspended = trained.model_copy(update={"rendezvous_generation": None})
    assert workload.desired(make_valid_job(), Ledger()).last_known is None
    job = make_valid_job()
    known = workload.desired(replace(job, status=trained), Ledger()).last_known
    number = GenerationNumber(1, 4)
    assert known == LastKnown(step=171, time=1767225610.0, world_size=3, generation=number)
    edited = trained.model_copy(update={"rendezvous_generation": "the fourth"})
    known = workload.desired(replace(job, status=edited), Ledger()).last_known
    assert known == LastKnown(step=171, time=1767225610.0, world_size=3)
    assert workload.desired(replace(job, status=suspended), Ledger()).last_known is None


def test_a_coordinator_learns_where_traces_go_only_where_there_is_such_a_place() -> None:
    def variables(endpoint: str) -> dict[str, str]:
        job, settings = make_valid_job(), SETTINGS.model_copy(update={"otlp_endpoint": endpoint})
        pod = workload.coordinator_pod(job, settings, workload.desired(job, Ledger()), 3, ())
        return values_of(pod["spec"]["containers"][0])

    traced = variables("http://collector:4318")
    assert CoordinatorEnvironment.read(traced).job_uid == make_valid_job().uid
    assert traced["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    more = {"OTEL_EXPORTER_OTLP_ENDPOINT", CoordinatorEnvironment.variable("job_uid")}
    assert traced.keys() - variables("").keys() == more


def test_the_pods_of_a_job_write_their_logs_as_the_operator_is_set() -> None:
    job, wanted = make_valid_job(), workload.desired(make_valid_job(), Ledger())
    settings = SETTINGS.model_copy(update={"log_format": "json"})
    for pod, as_before in (
        (
            workload.coordinator_pod(job, settings, wanted, 3, ()),
            workload.coordinator_pod(job, SETTINGS, wanted, 3, ()),
        ),
        (
            workload.worker_pod(job, settings, (0, 1), "198.18.0.1", ()),
            workload.worker_pod(job, SETTINGS, (0, 1), "198.18.0.1", ()),
        ),
    ):
        variables, former = (values_of(one["spec"]["containers"][0]) for one in (pod, as_before))
        assert variables == {**former, "REGROUP_LOG_FORMAT": "json"}


def test_a_coordinator_gets_the_job_as_it_should_be() -> None:
    job = make_valid_job()
    wanted = workload.desired(job, Ledger())
    pod = workload.coordinator_pod(job, SETTINGS, wanted, 3, ())
    environment = CoordinatorEnvironment.read(values_of(pod["spec"]["containers"][0]))
    assert environment.term == 3
    assert environment.first_desired() == wanted
    assert (wanted.revision, wanted.min_replicas, wanted.replicas, wanted.max_replicas) == (
        7,
        2,
        3,
        4,
    )
    assert wanted.directory == "/regroup/volume/team/gpt-4322f31b"
    assert pod["spec"]["restartPolicy"] == "Always"
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    (kept,) = (m["name"] for m in mounts if environment.kept_file.startswith(m["mountPath"] + "/"))
    assert {"name": kept, "emptyDir": {}} in pod["spec"]["volumes"]


@pytest.mark.parametrize(
    ("sub_path", "mount"),
    [
        ("a/b/", {"mountPath": "/regroup/volume/a/b", "subPath": "a/b"}),
        (None, {"mountPath": "/regroup/volume"}),
    ],
)
@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_pods_mount_only_the_sub_path_and_the_folder_lies_in_it(
    sub_path: str | None, mount: dict[str, str], launcher: str
) -> None:
    storage = {"persistentVolumeClaim": {"claimName": "shared", "subPath": sub_path}}
    command = [] if launcher == "regroup" else ["python", "train.py"]
    template = {"spec": {"containers": [{"name": "trainer", "command": command}]}}
    plain = {} if launcher == "regroup" else {"trainer": None, "template": template}
    job = make_valid_job(launcher=launcher, checkpoint={"storage": storage}, **plain)
    worker = {"regroup": workload.worker_pod, "torchrun": torchrun_workload.agent_pod}[launcher]
    made = [worker(job, SETTINGS, (1, 4), "198.19.0.1", ())]
    if launcher == "regroup":
        wanted = workload.desired(job, Ledger())
        made.append(workload.coordinator_pod(job, SETTINGS, wanted, 3, ()))
    for pod in made:
        mounted = pod["spec"]["containers"][0]["volumeMounts"]
        assert [m for m in mounted if m["name"] == "checkpoints"] == [
            {"name": "checkpoints", **mount}
        ]
    assert pods.directory(job) == f"{mount['mountPath']}/team/gpt-4322f31b"


def test_a_new_coordinator_is_seeded_with_the_larger_of_written_and_reported() -> None:
    job = make_valid_job()
    ledger = {"seconds": {"step": 5.0, "idle": 9.0}, "restarts": {"infrastructure": 2}}
    stored = job.status.model_copy(
        update={"ledger": job.status.ledger.model_copy(update={"seconds": {"step": 8.0}})}
    )
    job = replace(job, status=stored)
    seed = merge_ledgers(job.status, make_coordinator_status(ledger=ledger))
    assert seed.seconds == {"idle": 9.0, "step": 8.0}
    assert seed.restarts["infrastructure"] == 2


@pytest.mark.parametrize("pod", ["worker", "coordinator"])
def test_every_pod_is_restricted(pod: str) -> None:
    job = make_valid_job()
    made = (
        make_worker()
        if pod == "worker"
        else workload.coordinator_pod(job, SETTINGS, workload.desired(job, Ledger()), 1, ())
    )
    spec = made["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


def test_the_root_file_system_of_an_image_of_ones_own_stays_writable() -> None:
    main = main_of(make_worker(image="mine:1"))
    assert main["image"] == "mine:1"
    assert main["securityContext"]["readOnlyRootFilesystem"] is False


def test_the_template_wins_where_nothing_is_reserved() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [{"name": "trainer", "env": [{"name": "HOME", "value": "/data"}]}]},
    }
    pod = make_worker(template=template)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["regroup.dev/index"] == "1"
    assert values_of(main_of(pod))["HOME"] == "/data"
    assert main_of(pod)["command"] == ["python", "-P", "-m", "regroup_trainer.agent"]


def test_ranks_come_from_the_limit_of_gpus_wherever_it_is_given() -> None:
    in_template = {
        "spec": {
            "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
        }
    }
    assert values_of(main_of(make_worker(template=in_template)))["REGROUP_RANKS"] == "4"
    assert (
        values_of(main_of(make_worker(resources={"limits": {"nvidia.com/gpu": 2}})))[
            "REGROUP_RANKS"
        ]
        == "2"
    )
    assert values_of(main_of(make_worker(nprocPerNode=3)))["REGROUP_RANKS"] == "3"


def test_one_rank_may_own_all_gpus_of_its_worker() -> None:
    limits = {"limits": {"nvidia.com/gpu": 2}}
    main = main_of(make_worker(nprocPerNode=1, resources=limits))
    assert values_of(main)["REGROUP_RANKS"] == "1"
    assert main["resources"] == limits
    assert "CUDA_VISIBLE_DEVICES" not in values_of(main)


def test_a_limit_of_gpus_that_is_no_number_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"nvidia\.com/gpu='half'"):
        make_worker(resources={"limits": {"nvidia.com/gpu": "half"}})


def test_excluded_nodes_are_excluded_in_every_term_one_requirement_each() -> None:
    terms = [{"matchExpressions": [{"key": zone, "operator": "Exists"}]} for zone in ("a", "b")]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }
    pod = make_worker(("n2", "n1"), template={"spec": {"affinity": affinity}})
    found = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
        {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]},
    ]
    assert [term["matchFields"] for term in found["nodeSelectorTerms"]] == [fields, fields]
    assert [term["matchExpressions"][0]["key"] for term in found["nodeSelectorTerms"]] == ["a", "b"]
    assert pod["metadata"]["annotations"]["regroup.dev/excluded-nodes"] == "n1,n2"


def test_an_isolated_job_lets_in_its_own_pods_and_the_peers_of_the_settings() -> None:
    peers = ({"namespaceSelector": {"matchLabels": {"name": "monitoring"}}},)
    settings = SETTINGS.model_copy(update={"network_peers": peers})
    own, outside = workload.network_policy(make_valid_job(), settings)["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"regroup.dev/job": "gpt"}}}]}
    assert outside["from"] == list(peers)
    assert [port["port"] for port in outside["ports"]] == [8471, 8472]


@pytest.mark.parametrize(
    ("job", "elsewhere", "lets_in"),
    [("gpt", False, True), ("other", False, False), ("gpt", True, False), ("other", True, False)],
)
def test_a_pod_of_another_job_or_namespace_is_none_of_an_isolated_jobs_own(
    job: str, elsewhere: bool, lets_in: bool
) -> None:
    (peer,) = workload.network_policy(make_valid_job(), SETTINGS)["spec"]["ingress"][0]["from"]
    other_namespaces = "namespaceSelector" in peer or "ipBlock" in peer
    labels = peer["podSelector"]["matchLabels"].items()
    has_its_labels = labels <= {"regroup.dev/job": job}.items()
    assert (has_its_labels and (other_namespaces or not elsewhere)) is lets_in


def test_a_single_worker_may_keep_its_checkpoints_in_its_pod() -> None:
    job = make_valid_job(
        replicas=1, elasticPolicy=None, checkpoint={"storage": {"emptyDir": {"sizeLimit": "1Gi"}}}
    )
    pod = workload.worker_pod(job, SETTINGS, (0, 1), "198.19.0.1", ())
    assert {"name": "checkpoints", "emptyDir": {"sizeLimit": "1Gi"}} in pod["spec"]["volumes"]
