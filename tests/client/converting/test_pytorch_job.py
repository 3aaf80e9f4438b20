"""PyTorchJobs as TrainingJobs: workers, ranks, restarts, pods."""

from __future__ import annotations

import copy

import pytest
import yaml

from regroup.converting.draft import ConvertOptions
from tests.support.foreign_jobs import convert_one, problems
from tests.support.kube_api import Json
from tests.support.specs import put

JOB: Json = yaml.safe_load("""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - {name: pytorch, image: my/image, command: [torchrun, train.py], args: [--lr, "1"]}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - {name: pytorch, image: my/image, command: [torchrun, train.py], args: [--lr, "1"]}
""")
SPECS = "spec.pytorchReplicaSpecs"


def with_command(*command: str) -> Json:
    job = copy.deepcopy(JOB)
    for group in job["spec"]["pytorchReplicaSpecs"].values():
        container = group["template"]["spec"]["containers"][0]
        container["command"], container["args"] = list(command), []
    return job


def spec_of(job: Json, **options: object) -> Json:
    conversion = convert_one(job, options=ConvertOptions(**options))  # type: ignore[arg-type]
    assert conversion.refusal is None, conversion.refusal
    assert problems(conversion) == []
    spec: Json = dict(conversion.job or {})["spec"]
    return spec


def left_out(job: Json) -> str:
    return "\n".join(note.text for note in convert_one(job).left_out)


def test_master_and_workers_become_workers_that_are_alike() -> None:
    spec = spec_of(JOB)
    assert (spec["replicas"], spec["image"]) == (4, "my/image")
    (container,) = spec["template"]["spec"]["containers"]
    assert container == {"name": "trainer", "command": ["python", "train.py", "--lr", "1"]}


def test_what_differs_at_the_master_is_reported() -> None:
    job = copy.deepcopy(JOB)
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    master["image"] = "another/image"
    assert "'another/image' is left out: it differs from that of Worker" in left_out(job)


def test_a_master_alone_is_the_only_worker() -> None:
    spec = spec_of(put(JOB, f"{SPECS}.Worker", None))
    assert (spec["replicas"], "checkpoint" in spec) == (1, False)


def test_workers_of_which_there_are_none_do_not_say_what_the_master_runs() -> None:
    job = put(JOB, f"{SPECS}.Worker.replicas", 0)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker |= {"image": "another/image", "args": []}
    spec = spec_of(job)
    assert (spec["replicas"], spec["image"]) == (1, "my/image")
    assert spec["template"]["spec"]["containers"][0]["command"][-1] == "1"
    assert "is left out: its replicas are 0" in left_out(job)


def test_types_of_replicas_may_be_written_in_any_case() -> None:
    specs = JOB["spec"]["pytorchReplicaSpecs"]
    lower = {"master": specs["Master"], "WORKER": specs["Worker"]}
    assert spec_of(put(JOB, SPECS, lower)) == spec_of(JOB)


@pytest.mark.parametrize(
    ("command", "given", "ranks"),
    [
        (["torchrun", "train.py"], None, None),
        (["torchrun", "train.py"], "8", 8),
        (["torchrun", "--nproc_per_node=2", "train.py"], "8", 2),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "4", "x.py"], None, 4),
        (["python", "train.py"], None, 1),
        (["python", "train.py"], "8", 1),
        (["accelerate", "launch", "--num_processes", "8", "--num_machines", "4", "x.py"], None, 2),
    ],
)
def test_ranks_are_those_that_the_command_starts(
    command: list[str], given: str | None, ranks: int | None
) -> None:
    job = put(with_command(*command), "spec.nprocPerNode", given)
    assert spec_of(job).get("nprocPerNode") == ranks


def test_what_the_command_says_otherwise_is_reported() -> None:
    job = with_command("torchrun", "--nproc-per-node=2", "--max-restarts=1", "train.py")
    changed = put(put(job, "spec.nprocPerNode", "8"), "spec.runPolicy", {"backoffLimit": 5})
    assert "nprocPerNode 8 is left out: the command says 2" in left_out(changed)
    assert "maxRestarts 5 is left out: the command says 1" in left_out(changed)


def test_flags_about_the_rendezvous_are_left_out_by_name() -> None:
    job = with_command("torchrun", "--rdzv-endpoint=a:1", "--tee", "3", "--role", "r", "train.py")
    assert "--rdzv-endpoint=a:1 is left out: the job brings its own rendezvous" in left_out(job)
    assert "--tee=3 is left out: only launcher torchrun supports it" in left_out(job)
    (container,) = spec_of(job)["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py"]
    assert container["env"] == [{"name": "ROLE_NAME", "value": "r"}]


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ({"minReplicas": 2, "maxReplicas": 5}, {"minReplicas": 2, "maxReplicas": 5}),
        ({"maxReplicas": 4}, {"minReplicas": 4, "maxReplicas": 4}),
        ({"rdzvBackend": "c10d"}, None),
    ],
)
def test_bounds_are_as_the_training_operator_completes_them(
    policy: Json, bounds: Json | None
) -> None:
    assert spec_of(put(JOB, "spec.elasticPolicy", policy)).get("elasticPolicy") == bounds


@pytest.mark.parametrize(
    ("policies", "limit", "restarts"),
    [
        (("Never", "Never"), None, {"maxRestarts": 0}),
        (("Never", "Never"), 3, {"maxRestarts": 3}),
        (("OnFailure", "Never"), None, None),
        (("Always", "Always"), 7, {"maxRestarts": 7}),
    ],
)
def test_restarts_follow_from_policies_and_the_limit(
    policies: tuple[str, str], limit: int | None, restarts: Json | None
) -> None:
    job = put(JOB, "spec.runPolicy", {"backoffLimit": limit} if limit else {})
    for group, policy in zip(("Master", "Worker"), policies, strict=True):
        job = put(job, f"{SPECS}.{group}.restartPolicy", policy)
    assert spec_of(job).get("restartPolicy") == restarts


def test_an_image_without_a_command_needs_its_entrypoint() -> None:
    job = with_command()
    refusal = convert_one(job).refusal
    assert refusal is not None and "give --entrypoint" in refusal.text
    container = spec_of(job, entrypoint=("python", "/opt/mnist.py"))["template"]["spec"][
        "containers"
    ]
    assert container[0]["command"] == ["python", "/opt/mnist.py"]


def test_a_line_for_a_shell_gives_its_variables_and_its_folder() -> None:
    line = "pip install x && export A=1 && cd /app && B=2 exec_=3 torchrun --nnodes=4 train.py"
    job = with_command("bash", "-c", line)
    (container,) = spec_of(job)["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py"]
    assert container["workingDir"] == "/app"
    assert {e["name"]: e["value"] for e in container["env"]} == {"A": "1", "B": "2", "exec_": "3"}
    assert "pip install x is left out: another step" in left_out(job)


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "-c", "--"),
        ("/bin/bash", "-e", "-c"),
        ("bash", "-o", "pipefail", "-c"),
        ("bash", "-euxo", "pipefail", "-c"),
        ("bash", "-xc"),
        ("sh", "-ce"),
        ("bash", "--login", "-c"),
    ],
)
def test_options_of_a_shell_do_not_hide_its_line(words: tuple[str, ...]) -> None:
    job = with_command(*words, "cd /b && torchrun --nproc-per-node=2 x.py --lr 1")
    spec = spec_of(job)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", "x.py", "--lr", "1"]
    assert (spec["nprocPerNode"], container["workingDir"]) == (2, "/b")


def test_what_a_line_for_a_shell_sets_wins_over_the_container() -> None:
    job = with_command("sh", "-c", "cd /b && A=2 python x.py")
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container |= {"workingDir": "/a", "env": [{"name": "A", "value": "1"}]}
    (converted,) = spec_of(job)["template"]["spec"]["containers"]
    assert converted["workingDir"] == "/b"
    assert converted["env"] == [{"name": "A", "value": "2"}]
    assert "workingDir /a is left out: it is set elsewhere too" in left_out(job)
    assert "env A=1 is left out" in left_out(job)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["torchrun", "--no-python", "python", "-c", "pass"], "names no file that each rank"),
        (["python", "-c"], "the code of python -c is empty"),
        (["python", "-c", "print('$(HOME)')"], "has $(HOME) in it"),
        (["python", "-c", "print('a\0')"], "no file of Python may have"),
        (["deepspeed", "train.py"], "starts ranks itself"),
        (["bash", "run.sh"], "is a script for a shell, which is not in the file"),
        (["torchrun", "--no-such-flag", "train.py"], "torchrun has no such flag"),
        (["sh", "-c", "torchrun a.py; torchrun b.py"], "both start a program"),
    ],
)
def test_a_command_that_cannot_be_taken_refuses_the_job(command: list[str], expected: str) -> None:
    refusal = convert_one(with_command(*command)).refusal
    assert refusal is not None and expected in refusal.text
    assert refusal.place[-1] == "command"


@pytest.mark.parametrize(
    "command", [["python3", "-c", "CODE", "--lr", "1"], ["python3", "-u", "-ucCODE", "--lr", "1"]]
)
def test_code_in_the_command_becomes_the_file_of_a_config_map(command: list[str]) -> None:
    code = "import sys\nprint(sys.argv, f'$5')"
    job = with_command(*(word.replace("CODE", code) for word in command))
    place = f"{SPECS}.Worker.template.spec.volumes"
    conversion = convert_one(put(put(job, place, [{"name": "code"}]), "metadata.namespace", "team"))
    converted, config_map = conversion.job, conversion.config_map
    assert converted is not None and config_map is not None
    pod = converted["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["python3", "/regroup/code/main.py", "--lr", "1"]
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount == {"name": "code-2", "mountPath": "/regroup/code", "readOnly": True}
    assert pod["volumes"][1] == {
        "name": "code-2",
        "configMap": {"name": config_map["metadata"]["name"]},
    }
    assert config_map["data"] == {"main.py": f"{code}\n"}
    assert config_map["metadata"]["namespace"] == converted["metadata"]["namespace"] == "team"
    assert any("create both" in check for check in conversion.checks)


def test_the_claim_can_be_named() -> None:
    storage = spec_of(JOB, claim="data")["checkpoint"]["storage"]
    assert storage == {"persistentVolumeClaim": {"claimName": "data"}}


def with_claims(**read_only: bool) -> Json:
    """The job with these claims mounted in all pods."""
    job = copy.deepcopy(JOB)
    for group in job["spec"]["pytorchReplicaSpecs"].values():
        pod = group["template"]["spec"]
        pod["volumes"] = [
            {"name": f"of-{claim}", "persistentVolumeClaim": {"claimName": claim}}
            for claim in read_only
        ]
        pod["containers"][0]["volumeMounts"] = [
            {"name": f"of-{claim}", "mountPath": f"/{claim}", "readOnly": is_read_only}
            for claim, is_read_only in read_only.items()
        ]
    return job


@pytest.mark.parametrize(
    ("claims", "chosen"),
    [
        ({"shared": False}, "shared"),
        ({"shared": False, "data": True}, "shared"),
        ({"data": True}, "checkpoints"),
        ({"shared": False, "other": False}, "checkpoints"),
    ],
)
def test_the_one_claim_that_the_pods_write_to_takes_the_checkpoints(
    claims: dict[str, bool], chosen: str
) -> None:
    job = with_claims(**claims)
    storage = spec_of(job)["checkpoint"]["storage"]
    assert storage == {"persistentVolumeClaim": {"claimName": chosen}}
    (check,) = (c for c in convert_one(job).checks if c.startswith("spec.checkpoint.storage"))
    words = "is added" if chosen == "checkpoints" else "that the pods mount takes the checkpoints"
    assert f"claim {chosen} {words}" in check


def test_a_claim_that_is_named_wins_over_the_one_that_the_pods_mount() -> None:
    storage = spec_of(with_claims(shared=False), claim="data")["checkpoint"]["storage"]
    assert storage == {"persistentVolumeClaim": {"claimName": "data"}}
