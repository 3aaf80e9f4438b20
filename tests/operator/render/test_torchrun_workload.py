"""The pods that launcher torchrun gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from regroup_operator.observe.kubernetes_objects import read_pod
from regroup_operator.observe.observed import Job
from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.torchrun_commands import SETTINGS, TORCHRUN
from regroup_trainer.protocol.torchrun_programs import RUN_RANK
from tests.support.operator_simulation import SCRIPT, make_torchrun_spec
from tests.support.rendering import SETTINGS as OPERATOR
from tests.support.rendering import job_of


def make_job(**fields: Any) -> Job:
    return job_of(make_torchrun_spec(**fields), {"coordinatorTerm": 3})


def make_agent(**fields: Any) -> dict[str, Any]:
    return torchrun_workload.agent_pod(make_job(**fields), OPERATOR, (1, 4), "198.19.0.1", ())


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The only container of a worker, or of the store."""
    (found,) = pod["spec"]["containers"]
    return dict(found)


def test_an_agent_is_stock_torchrun_with_the_settings_that_recover() -> None:
    assert main_of(make_agent())["command"] == [
        *(
            "python",
            "-c",
            TORCHRUN,
            "--nnodes=2:4",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
        ),
        *("--rdzv-endpoint=198.19.0.1:29400", "--rdzv-id=4322f31b-3", f"--rdzv-conf={SETTINGS}"),
        *("--max-restarts=10", "--local-addr=$(POD_IP)"),
        *("--no-python", "python", "-u", RUN_RANK, "train.py"),
    ]


def test_the_program_of_a_rank_comes_with_the_pod_whose_image_may_not_have_it() -> None:
    variables = {entry["name"]: entry.get("value", "") for entry in main_of(make_agent())["env"]}
    program = variables["REGROUP_RANK_PROGRAM"]
    compile(program, "<regroup>", "exec")
    assert not re.search(r"^\s*(import|from) regroup", program, re.MULTILINE)
    assert "$(" not in program, "Kubernetes would put variables there"
    assert len(program) < 40_000


@pytest.mark.parametrize("flag", ["--tee=3", "-r3", "--log-line-prefix-template=x"])
def test_torchruns_own_flags_for_output_leave_the_ranks_to_it(flag: str) -> None:
    container = {"name": "trainer", "command": ["torchrun", flag, "train.py"]}
    main = main_of(make_agent(template={"spec": {"containers": [container]}}))
    assert main["command"][-2:] == [flag, "train.py"]
    assert "REGROUP_RANK_PROGRAM" not in {entry["name"] for entry in main["env"]}


def test_one_rank_may_own_all_devices_of_its_worker() -> None:
    limits = {"limits": {"nvidia.com/gpu": 2}}
    main = main_of(make_agent(nprocPerNode=1, resources=limits))
    assert "--nproc-per-node=1" in main["command"]
    assert main["resources"] == limits
    assert "CUDA_VISIBLE_DEVICES" not in {entry["name"] for entry in main["env"]}


def test_an_agent_knows_its_address_and_the_folder_of_the_job() -> None:
    variables = {entry["name"]: entry for entry in main_of(make_agent())["env"]}
    assert variables["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]["value"] == "1"
    assert variables["REGROUP_DIRECTORY"]["value"] == "/regroup/volume/team/gpt-4322f31b"


def test_an_agent_carries_its_attempt_and_its_bounds() -> None:
    document = make_agent()
    pod = read_pod({**document, "metadata": {**document["metadata"], "uid": "pod-1"}})
    assert (pod.role, pod.index, pod.term, pod.nnodes) == ("worker", 1, 3, "2:4")
    assert pod.name == "gpt-w1-4"


def test_command_and_args_of_the_template_become_the_script_of_every_rank() -> None:
    container = {
        "name": "trainer",
        "image": "mine:1",
        "workingDir": "/example",
        "command": ["/opt/conda/bin/python"],
        "args": ["train.py", "--epochs", "3"],
        "resources": {"limits": {"nvidia.com/gpu": 4}},
        "volumeMounts": [{"name": "code", "mountPath": "/example"}],
    }
    main = main_of(make_agent(template={"spec": {"containers": [container]}}, image="other:1"))
    assert main["command"][:3] == ["/opt/conda/bin/python", "-c", TORCHRUN]
    assert main["command"][-3:] == ["train.py", "--epochs", "3"]
    assert "--nproc-per-node=4" in main["command"]
    assert "args" not in main
    assert (main["image"], main["workingDir"]) == ("mine:1", "/example")
    assert {"name": "code", "mountPath": "/example"} in main["volumeMounts"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in main["volumeMounts"]


def accelerate_template(**container: Any) -> dict[str, Any]:
    command = ["accelerate", "launch", "--mixed_precision=bf16", "--role=a", "train.py"]
    return {"spec": {"containers": [{"name": "trainer", "command": command, **container}]}}


def test_the_flags_of_accelerate_become_variables_whatever_the_template_says() -> None:
    given = [
        {"name": "ACCELERATE_MIXED_PRECISION", "value": "no"},
        {"name": "MINE", "value": "1"},
    ]
    main = main_of(make_agent(template=accelerate_template(env=given)))
    values = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert len(values) == len(main["env"])
    assert values["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert values["MINE"] == "1"
    assert "--role=a" in main["command"]
    assert main["command"][-1] == "train.py"


def test_no_limit_of_restarts_is_a_number_that_is_never_reached() -> None:
    assert (
        "--max-restarts=1000000"
        in main_of(make_agent(restartPolicy={"maxRestarts": -1}))["command"]
    )


def test_the_store_runs_the_image_of_the_workers_where_they_run() -> None:
    template = {
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": "mine"}],
            "containers": [{"name": "trainer", "image": "mine:1", "command": ["python3", "a.py"]}],
        }
    }
    pod = torchrun_workload.store_pod(make_job(template=template), OPERATOR, 3, ())
    assert main_of(pod)["image"] == "mine:1"
    assert main_of(pod)["command"][0] == "python3"
    assert main_of(pod)["command"][-2:] == ["29400", "4322f31b-3"]
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    assert pod["spec"]["restartPolicy"] == "Never"
    service = workload.service(make_job(), 3)
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["metadata"]["name"] == "gpt-store"
    assert service["spec"]["ports"][0]["port"] == main_of(pod)["ports"][0]["containerPort"]


def test_all_pods_are_restricted_and_hold_no_token() -> None:
    for pod in (make_agent(), torchrun_workload.store_pod(make_job(), OPERATOR, 3, ())):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert not [volume for volume in pod["spec"]["volumes"] if "secret" in volume]
        security = main_of(pod)["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False


def test_only_its_own_pods_reach_a_job() -> None:
    ingress = workload.network_policy(make_job(), OPERATOR)["spec"]["ingress"]
    assert ingress == [{"from": [{"podSelector": {"matchLabels": {"regroup.dev/job": "gpt"}}}]}]


def test_a_job_of_fixed_size_needs_no_storage() -> None:
    job = make_job(elasticPolicy=None, checkpoint={}, template=SCRIPT)
    pod = torchrun_workload.agent_pod(job, OPERATOR, (0, 1), "198.19.0.1", ())
    assert {"name": "checkpoints", "emptyDir": {}} in pod["spec"]["volumes"]
    assert "--nnodes=3:3" in main_of(pod)["command"]
