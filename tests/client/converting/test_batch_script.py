"""Scripts for sbatch, and command lines of torchrun and srun, as TrainingJobs."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup.converting.conversion import Conversion, convert_command, convert_script
from regroup.converting.draft import ConvertOptions
from regroup.converting.job_yaml import job_yaml
from regroup.converting.slurm_options import SLURM
from regroup.converting.source import Note
from tests.support.foreign_jobs import problems
from tests.support.kube_api import Json

MULTI_NODE = """\
#!/bin/bash
#SBATCH --job-name=Llama_70B
#SBATCH -N 4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:8   # all of a node
#SBATCH --cpus-per-task=96
#SBATCH --mem=900G
#SBATCH --time=2-12:30:00
#SBATCH --partition=gpu
#SBATCH --output=logs/%j.out

module load cuda/12.4
source /opt/venv/bin/activate
export NCCL_DEBUG=INFO
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export GPUS_PER_NODE=8
CONFIG=configs/70b.yaml
UNUSED=1
cd /workspace

srun --kill-on-bad-exit=1 torchrun \\
    --nnodes $SLURM_NNODES --nproc_per_node $GPUS_PER_NODE \\
    --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 \\
    train.py --config $CONFIG --seed "${SEED:-1}" > logs/out.txt 2>&1
echo done
#SBATCH --late
"""
LAUNCHER = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes $SLURM_NNODES \\
  --rdzv_endpoint $MASTER_ADDR:6000 --tee 3"
export CMD="train.py --lr 0.1"
srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD"
"""


def converted(conversion: Conversion) -> Json:
    assert conversion.refusal is None, conversion.refusal
    assert problems(conversion) == []
    job: Json = dict(conversion.job or {})
    return job


def script(text: str) -> Json:
    return converted(convert_script(text, ConvertOptions()))


def command(line: str) -> Json:
    return converted(convert_command(shlex.split(line), ConvertOptions()))


def test_a_script_of_several_nodes_becomes_a_job() -> None:
    job = script(MULTI_NODE)
    (container,) = job["spec"].pop("template")["spec"]["containers"]
    assert container == {
        "name": "trainer",
        "command": ["python", "train.py", "--config", "configs/70b.yaml", "--seed", "1"],
        "workingDir": "/workspace",
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "GPUS_PER_NODE", "value": "8"},
        ],
    }
    assert job["metadata"] == {"name": "llama-70b"}
    assert job["spec"] == {
        "replicas": 4,
        "nprocPerNode": 8,
        "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "900Gi"}, "requests": {"cpu": 96}},
        "activeDeadlineSeconds": 217800,
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
    }


def test_what_a_script_loses_is_named_with_its_line() -> None:
    notes = {(n.line, n.text.partition(" is left out")[0]) for n in left_out(MULTI_NODE)}
    assert {
        (9, "--partition=gpu"),
        (10, "--output=logs/%j.out"),
        (12, "module load cuda/12.4"),
        (13, "source /opt/venv/bin/activate"),
        (18, "UNUSED=1"),
        (21, "type a100 of --gres=gpu:a100:8"),
        (21, "--kill-on-bad-exit"),
        (21, "--rdzv_id=$SLURM_JOB_ID"),
        (21, "--rdzv_endpoint=$MASTER_ADDR:29500"),
        (21, "> logs/out.txt >& 1"),
        (25, "echo done"),
        (26, "--late"),
    } == {note for note in notes if not note[1].startswith("MASTER_ADDR=$(scontrol")}
    assert any(line == 15 for line, _ in notes)


def left_out(text: str) -> tuple[Note, ...]:
    return convert_script(text, ConvertOptions()).left_out


def test_a_launcher_in_variables_is_read_through_them() -> None:
    job = script(LAUNCHER)
    assert (job["spec"]["replicas"], job["spec"]["nprocPerNode"]) == (2, 4)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("line", "workers", "ranks"),
    [
        ("torchrun train.py", 1, 1),
        ("torchrun --nproc-per-node=$N train.py", 1, None),
        ("torchrun --nproc-per-node=gpu train.py", 1, None),
        ("torchrun --standalone --nproc-per-node 4 train.py", 1, 4),
        ("torchrun --nnodes 1:4 --nproc-per-node=8 train.py", 4, 8),
        ("python train.py", 1, 1),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py", 2, 8),
        ("srun -N 4 --ntasks-per-node 8 python train.py", 4, 8),
        ("srun -N2 -n16 python -m package.train", 2, 8),
        ("srun -n 4 python train.py", 4, 1),
        ("srun --nodes=2-4 --gpus-per-node=8 torchrun train.py", 4, 1),
    ],
)
def test_nodes_are_workers_and_tasks_are_ranks(line: str, workers: int, ranks: int | None) -> None:
    spec = command(line)["spec"]
    assert (spec["replicas"], spec.get("nprocPerNode")) == (workers, ranks)


def test_several_programs_of_one_srun_are_refused() -> None:
    words = ["srun", "--het-group=0", "python", "a.py", ":", "--het-group=1", "python", "b.py"]
    refusal = convert_command(words, ConvertOptions()).refusal
    assert refusal is not None
    assert "srun starts several programs, with : between them" in refusal.text


def test_a_range_of_nodes_becomes_the_bounds_of_an_elastic_job() -> None:
    bounds = {"minReplicas": 2, "maxReplicas": 4}
    assert command("srun -N 2-4 torchrun train.py")["spec"]["elasticPolicy"] == bounds
    assert command("torchrun --nnodes 2:4 train.py")["spec"]["elasticPolicy"] == bounds


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--gpus=16 -N 2", "resources.limits", {"nvidia.com/gpu": 8}),
        ("--gres gpu:2", "resources.limits", {"nvidia.com/gpu": 2}),
        ("--gpus-per-task h100:1 -n 8 -N 2", "resources.limits", {"nvidia.com/gpu": 4}),
        ("--mem 512", "resources.limits", {"memory": "512Mi"}),
        ("--mem-per-cpu=2G -c 4", "resources.limits", {"memory": "8Gi"}),
        ("--mem-per-gpu 10G --gres=gpu:4", "resources.limits.memory", "40Gi"),
        ("--mem-per-cpu=512 -c 4", "resources.limits", {"memory": "2048Mi"}),
        ("--mem-per-cpu=2g -c 4 -N 2 -n 4", "resources.limits", {"memory": "16Gi"}),
        ("--mem-per-gpu=100k --gpus-per-node=a100:3", "resources.limits.memory", "300Ki"),
        ("--mem-per-gpu 1T -N 2 --gpus=8", "resources.limits.memory", "4Ti"),
        ("--gres=gpu:a100:4", "resources.limits", {"nvidia.com/gpu": 4}),
        ("--gres=gpu:a100", "resources.limits", {"nvidia.com/gpu": 1}),
        ("--gres=gpu:1g.10gb:2", "resources.limits", {"nvidia.com/gpu": 2}),
        ("--gres=gpu", "resources.limits", {"nvidia.com/gpu": 1}),
        ("-t 90", "activeDeadlineSeconds", 5400),
        ("-t 1:30", "activeDeadlineSeconds", 90),
        ("-t 1:00:00", "activeDeadlineSeconds", 3600),
        ("-t 1-1", "activeDeadlineSeconds", 90000),
        ("--time=0", "activeDeadlineSeconds", None),
        ("--container-image my/image", "image", "my/image"),
        ("-D /data", "template.spec.containers", None),
    ],
)
def test_what_is_asked_for_becomes_fields(options: str, field: str, value: object) -> None:
    found: object = command(f"srun {options} python train.py")["spec"]
    for name in field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    assert found == value or isinstance(found, list)


NO_AMOUNT = "give an amount; 0 would be all of a node"
NO_CPUS = "the script gives no --cpus-per-task: set resources.limits.memory"
NO_GPUS = "the script gives no GPUs: set resources.limits.memory"
SELECT = "use nodeSelector, such as nvidia.com/gpu.product"
ONE_KIND = "only GPUs of one kind are taken over, as gpu:4"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--mem-per-cpu=2G", f"--mem-per-cpu=2G is left out: {NO_CPUS}"),
        ("--mem-per-cpu=2G --gres=gpu:2", f"--mem-per-cpu=2G is left out: {NO_CPUS}"),
        ("--mem-per-gpu=2G -c 4", f"--mem-per-gpu=2G is left out: {NO_GPUS}"),
        ("--mem-per-gpu=2G --gres=gpu:0", f"--mem-per-gpu=2G is left out: {NO_GPUS}"),
        ("--mem-per-gpu=2G -N 4 --gpus 0", f"--mem-per-gpu=2G is left out: {NO_GPUS}"),
        ("--mem-per-cpu=0 -c 4", f"--mem-per-cpu=0 is left out: {NO_AMOUNT}"),
        ("--mem-per-cpu=none -c 4", f"--mem-per-cpu=none is left out: {NO_AMOUNT}"),
        ("--mem-per-cpu=1.5G -c 4", f"--mem-per-cpu=1.5G is left out: {NO_AMOUNT}"),
        ("--mem=4G --mem-per-cpu=1G -c 4", "--mem-per-cpu=1G is left out: --mem says 4Gi"),
        (
            "--mem-per-cpu=1G --mem-per-gpu=2G -c 4",
            "--mem-per-gpu=2G is left out: --mem-per-cpu=1G says another value",
        ),
        ("--gres=gpu:a100:4", f"type a100 of --gres=gpu:a100:4 is left out: {SELECT}"),
        ("--gres=gpu:a100", f"type a100 of --gres=gpu:a100 is left out: {SELECT}"),
        ("--gpus-per-node=h100:8", f"type h100 of --gpus-per-node=h100:8 is left out: {SELECT}"),
        ("-N 2 --gpus=v100:8", f"type v100 of --gpus=v100:8 is left out: {SELECT}"),
        ("--gpus-per-task=v100:1", f"type v100 of --gpus-per-task=v100:1 is left out: {SELECT}"),
        ("--gres=none", f"--gres=none is left out: {ONE_KIND}"),
        ("--gres=gpux:4", f"--gres=gpux:4 is left out: {ONE_KIND}"),
        ("--gres=gpu:a:2,gpu:b:2", f"--gres=gpu:a:2,gpu:b:2 is left out: {ONE_KIND}"),
    ],
)
def test_memory_and_types_of_gpus_that_are_not_taken_over_are_named(
    options: str, sentence: str
) -> None:
    assert [note.text for note in left_out(f"srun {options} python train.py")] == [sentence]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["--mem-per-cpu", "--mem-per-gpu", "--mem", "--gres", "--gpus-per-node"]),
    st.text("0123kKmMgGtTB:.-,gpua", max_size=8),
    st.sampled_from(["", "-c 2", "--gpus-per-task=1"]),
)
def test_a_drawn_amount_is_a_limit_or_is_named(name: str, value: str, others: str) -> None:
    line = f"srun {others} {name}={value} python train.py"
    limits = command(line)["spec"].get("resources", {}).get("limits", {})
    wanted = "memory" if "mem" in name else "nvidia.com/gpu"
    is_named = any(f"{name}=" in note.text for note in left_out(line))
    is_none = re.fullmatch(r"(.*:)?0+", value) is not None
    assert wanted in limits or is_named or (is_none and "mem" not in name)


@pytest.mark.parametrize("name", SLURM.flags)
def test_each_option_is_taken_over_or_reported(name: str) -> None:
    flag = SLURM.flags[name]
    option = f"--{name}=8" if flag.takes_value else f"--{name}"
    conversion = convert_command(
        ["srun", "-N", "2", option, "python", "train.py"], ConvertOptions()
    )
    assert conversion.refusal is None
    is_left = any(note.text.startswith(f"--{name}") for note in conversion.left_out)
    # 8 is no value of theirs, or says too little alone
    value = {"chdir", "container-workdir", "gres", "mem-per-cpu", "mem-per-gpu"}
    assert is_left == (flag.kind == "left" or name in value) or name == "nodes"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun --no-such-option 3 python train.py", "has no such flag"),
        ("srun -N 2", "srun starts nothing"),
        ("srun bash train.sh", "is a script for a shell"),
        ("echo hello", "no command starts a Python script"),
        ("grep -c hello there", "no command starts a Python script"),
        ("mpirun -np 4 python train.py", "starts ranks itself"),
        ("python $SCRIPT", "names no Python script"),
        ("python '$DIR/train.py'", "a variable in its name"),
        ("srun '$LAUNCHER' train.py", "$LAUNCHER starts train.py, and its value is not known here"),
        ("bash -c 'sh train.sh; torchrun'", "names no Python script"),
        ("bash -c 'torchrun train.py' --lr 1", "--lr 1 stands behind the line for a shell"),
    ],
)
def test_a_line_that_starts_no_script_is_refused(line: str, expected: str) -> None:
    refusal = convert_command(shlex.split(line), ConvertOptions()).refusal
    assert refusal is not None and expected in refusal.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "for seed in 1 2; do\n  python train.py --seed $seed\ndone",
            "for seed in 1 2 starts python train.py --seed $seed several times: a job is one run",
        ),
        ("while true; do torchrun train.py && break; done", "while true starts torchrun train.py"),
        ("#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun python a.py", "hetjob: a job has workers"),
    ],
)
def test_a_script_that_is_more_than_one_run_is_refused(text: str, expected: str) -> None:
    refusal = convert_script(text, ConvertOptions()).refusal
    assert refusal is not None and expected in refusal.text


def test_a_loop_that_has_ended_before_the_command_is_another_step() -> None:
    (container,) = script("for i in 1 2\ndo\n  echo $i\ndone\ntorchrun x.py")["spec"]["template"][
        "spec"
    ]["containers"]
    assert container["command"] == ["python", "x.py"]


def test_a_launcher_whose_numbers_are_computed() -> None:
    """As in accelerate's own example for Slurm."""
    lines = [
        "#SBATCH --nodes=4",
        "export GPUS_PER_NODE=4",
        "head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
        'export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \\',
        '   --num_machines $SLURM_NNODES --main_process_ip $head_node_ip"',
        'echo "$LAUNCHER train.py"',
        "srun $LAUNCHER train.py --batch $((1024 / (2*GPUS_PER_NODE)))",
    ]
    conversion = convert_script("\n".join(lines), ConvertOptions())
    spec = converted(conversion)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["nprocPerNode"]) == (4, 4)
    assert container["command"] == ["accelerate", "launch", "train.py", "--batch", "128"]


def test_a_line_for_a_shell_behind_a_wrapper_is_read() -> None:
    conversion = convert_command(
        ["srun", "-N2", "apptainer", "exec", "i.sif", "bash", "-c", "cd /a && torchrun x.py"],
        ConvertOptions(),
    )
    (container,) = converted(conversion)["spec"]["template"]["spec"]["containers"]
    assert (container["command"], container["workingDir"]) == (["python", "x.py"], "/a")
    assert [note.text for note in conversion.left_out] == [
        "apptainer exec i.sif is left out: the image has to bring what it sets up"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "srun -N2 bash -c \"\n  cd /a\n  torchrun \\\n    x.py --n '1 2'\n\"",
        "#SBATCH -N2\nCMD='torchrun\n  x.py --n'\ncd /a\nsrun $CMD '1 2'  # don't",
        "#SBATCH -N2\n# it's <<EOF\ncd /a\nsrun torchrun x.py --n '1 2'\necho don't",
    ],
)
def test_quotes_may_go_over_several_lines(text: str) -> None:
    spec = script(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], container["workingDir"]) == (2, "/a")
    assert container["command"] == ["python", "x.py", "--n", "1 2"]


@pytest.mark.parametrize(
    ("options", "workers", "ranks"),
    [
        ("-N 4 --ntasks-per-node=8 -n 4", 4, 1),  # then it is the most of a node
        ("--ntasks-per-node=4 -n 6", 2, 3),
        ("--ntasks-per-node=4 -n 8", 2, 4),
        ("-N 2 --ntasks-per-node=4", 2, 4),
    ],
)
def test_the_number_of_all_tasks_wins_over_that_of_a_node(
    options: str, workers: int, ranks: int
) -> None:
    spec = command(f"srun {options} python x.py")["spec"]
    assert (spec["replicas"], spec["nprocPerNode"]) == (workers, ranks)


def test_gpus_that_no_worker_gets_are_named() -> None:
    assert [note.text for note in left_out("srun -N 3 --gpus=8 python x.py")] == [
        "--gpus=8 is left out: no multiple of 3 nodes: each has 2"
    ]


def test_words_that_only_a_shell_replaces_are_named() -> None:
    notes = left_out("""torchrun train.py ~/data a*.txt {a,b} 'c d' --json '{"a": [1, 2]}' x@~/y""")
    why = "goes to the script as it is: no shell replaces it"
    assert [note.text for note in notes] == [
        f"{word} {why}" for word in ("~/data", "a*.txt", "{a,b}")
    ]


def test_files_that_a_command_reads_are_not_called_output() -> None:
    notes = left_out("torchrun train.py < in.txt")
    assert [note.text for note in notes] == [
        "< in.txt is left out: ranks read no input: give the script the file's name"
    ]


def test_programs_that_only_prepare_do_not_count_as_the_script() -> None:
    lines = ["python -m pip install x", "python -c 'import torch'", "cd /a", "cd /b", "python x.py"]
    conversion = convert_script("\n".join([*lines, "cd /c"]), ConvertOptions())
    (container,) = converted(conversion)["spec"]["template"]["spec"]["containers"]
    assert (container["command"], container["workingDir"]) == (["python", "x.py"], "/b")
    assert {note.line for note in conversion.left_out} == {1, 2, 3, 6}


def test_a_wrapper_of_the_command_is_named() -> None:
    conversion = convert_command(
        ["srun", "apptainer", "exec", "i.sif", "torchrun", "x.py"], ConvertOptions()
    )
    assert (
        converted(conversion)["spec"]["template"]["spec"]["containers"][0]["command"][1] == "x.py"
    )
    assert any(
        note.text.startswith("apptainer exec i.sif is left out") for note in conversion.left_out
    )


WORDS = st.sampled_from(
    ["#SBATCH", "-N", "2", "srun", "torchrun", "python", "mark1.py", "export", "mark2=mark3", "\n",
     "--nnodes=$mark2", "mark4", "&&", "|", "'", '"', "$(mark5)", "--mark6", "cd", "/mark7", "#",
     "--nproc-per-node", "mark8=mark9", "--gres=gpu:mark10", "--mem=3G", "bash -c", "> mark11"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=20))
def test_a_drawn_script_is_converted_without_a_lost_word_or_refused(words: list[str]) -> None:
    text = " ".join(words).replace(" \n ", "\n")
    conversion = convert_script(text, ConvertOptions())
    if conversion.refusal is not None:
        assert conversion.refusal.text
        return
    written = job_yaml(conversion.job or {}, [note.text for note in conversion.left_out])
    plain = re.sub(r"(?m)(?<!^)(?<=\s)#.*|^#(?!SBATCH).*", "", text)  # without comments
    used = {"mark2", "mark8"}  # names of variables, which are replaced by their values
    assert [m for m in re.findall(r"mark\d+", plain) if m not in written and m not in used] == []
