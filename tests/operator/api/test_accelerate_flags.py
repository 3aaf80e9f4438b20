"""The command line of `accelerate launch`: held against the real library, and against the spec."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from regroup_operator.api.accelerate_flags import read_accelerate
from regroup_operator.api.launcher_flags import FlagError
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import user_script
from tests.support.accelerate_library import library_variables, parser

THREADS = "OMP_NUM_THREADS"
"""Without its flag, torchrun's rule sets it. The library says 1, or counts cores."""
FSDP = "--use_fsdp --num_processes=2"
COMMANDS = [
    "--num_processes=1",
    "--cpu",
    "--cpu --num_processes=2 --mixed_precision=bf16",
    "--multi_gpu --num_processes=2",
    "--multi-gpu --num-processes 2 --mixed-precision fp16",
    "--num_processes=1 --dynamo_backend=inductor --dynamo_mode=max-autotune",
    "--multi_gpu --num_processes=2 --dynamo_backend aot_eager --dynamo_use_fullgraph",
    "--num_processes=1 --dynamo_use_dynamic --dynamo_use_regional_compilation",
    "--num_processes=1 --debug -q",
    "--num_processes=1 --num_cpu_threads_per_process=3 --enable_cpu_affinity",
    "--num_processes=1 --gpu_ids=all",
    "--multi_gpu --num_processes=4 --num_machines=1 --tee=3 --log_dir=/tmp/x --role=a",
    FSDP,
    f"{FSDP} --fsdp_version=2 --fsdp_reshard_after_forward=false --fsdp_offload_params=True",
    f"{FSDP} --fsdp_sharding_strategy=SHARD_GRAD_OP --fsdp_min_num_params=1000",
    (
        f"{FSDP} --fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP "
        "--fsdp_transformer_layer_cls_to_wrap=Block,Head"
    ),
    f"{FSDP} --fsdp_backward_prefetch=BACKWARD_PRE --fsdp_state_dict_type=SHARDED_STATE_DICT",
    (
        f"{FSDP} --fsdp_forward_prefetch=true --fsdp_use_orig_params=False "
        "--fsdp_cpu_ram_efficient_loading=false --fsdp_sync_module_states=false"
    ),
    f"{FSDP} --fsdp_activation_checkpointing=true --fsdp_activation_checkpointing_offload=yes",
    (
        f"{FSDP} --fsdp_version=2 --use_parallelism_config "
        "--parallelism_config_dp_replicate_size=2 --parallelism_config_dp_shard_size=2 "
        "--parallelism_config_tp_size=2"
    ),
    (
        f"{FSDP} --fsdp_version=2 --use_parallelism_config --parallelism_config_cp_size=2 "
        "--parallelism_config_cp_comm_strategy=alltoall"
    ),
    (
        f"{FSDP} --fsdp_version=2 --use_parallelism_config --parallelism_config_sp_size=2 "
        "--parallelism_config_sp_seq_length=512 --parallelism_config_sp_attn_implementation=eager"
    ),
    "--num_processes=1 --mixed_precision=fp8 --fp8_backend=te",
    (
        "--num_processes=1 --mixed_precision=fp8 --fp8_backend=te --fp8_margin=1 --fp8_interval=2 "
        "--fp8_format=E4M3 --fp8_amax_history_len=16 --fp8_amax_compute_algo=max "
        "--fp8_use_autocast_during_eval --fp8_override_linear_precision=true,false,true"
    ),
    (
        f"{FSDP} --mixed_precision=fp8 --fp8_backend=ao --fp8_enable_fsdp_float8_all_gather=false "
        "--fp8_pad_inner_dim=no --fp8_opt_level=O1"
    ),
    "--num_processes=1 --fsdp_version=2 --fp8_margin=3 --parallelism_config_tp_size=2",
]


def written(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize("line", COMMANDS)
def test_the_variables_are_those_of_the_library(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = library_variables(written(line), monkeypatch)
    found = dict(read_accelerate([*written(line), "train.py"])[0].variables)
    if "num_cpu_threads" not in line:
        expected.pop(THREADS)
    assert found == expected


def test_every_flag_of_the_library_is_known() -> None:
    positional_or_internal = {"training_script", "training_script_args"}
    unknown = []
    for action in parser()._actions:
        for name in action.option_strings:
            value = [] if action.nargs == 0 else ["1"]
            try:
                read_accelerate([name, *value, "train.py"])
            except FlagError as error:
                if "no such flag" in str(error) or "its value is missing" in str(error):
                    unknown.append(name)
    assert unknown == []
    assert positional_or_internal <= {action.dest for action in parser()._actions}


@pytest.mark.parametrize(
    "command",
    [
        ["accelerate", "launch"],
        ["accelerate-launch"],
        ["python", "-m", "accelerate.commands.launch"],
        ["python", "-u", "-m", "accelerate.commands.accelerate_cli", "launch"],
        ["accelerate", "launch", "-q"],
    ],
)
def test_a_command_of_accelerate_stands_before_the_script(command: list[str]) -> None:
    words = [*command, "--mixed_precision", "bf16", "-m", "mine.train", "-v"]
    script = user_script({"spec": {"containers": [{"name": "trainer", "command": words}]}})
    assert script is not None
    assert (script.interpreter, script.arguments) == ("python", ("-m", "mine.train", "-v"))
    assert script.variables["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_flags_of_one_letter_may_share_a_word() -> None:
    assert read_accelerate(["-qm", "mine", "-v"])[1] == ["-m", "mine", "-v"]
    assert read_accelerate(["-qt3", "x.py"])[0].stock == ("-t3",)


def test_its_interpreter_lies_beside_the_launcher() -> None:
    words = ["/opt/venv/bin/accelerate", "launch", "train.py"]
    script = user_script({"spec": {"containers": [{"name": "trainer", "command": words}]}})
    assert script is not None
    assert script.interpreter == "/opt/venv/bin/python"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--use_deepspeed --zero_stage 2 --cpu", "--use_deepspeed, --zero_stage=2: DeepSpeed bri"),
        ("--use_megatron_lm", "--use_megatron_lm: Megatron-LM is not supported: use FSDP"),
        ("--tpu --vm=a", "--tpu, --vm=a: TPUs are not supported"),
        ("--aws_access_key_id=a", "SageMaker starts jobs of its own"),
        ("--machine_rank=1 --cpu", "rendezvous: write [accelerate, launch, --cpu, train.py]"),
        ("--main_process_ip=a --main_process_port 1", "--main_process_ip=a, --main_process_port=1"),
        ("--rdzv_backend=c10d", "--rdzv_backend=c10d: the job brings its own rendezvous"),
        ("--mpirun_hostfile=a", "without MPI"),
        ("--gpu_ids=0,1", "--gpu_ids=0,1: the GPU limit in spec.resources says which GPUs"),
        ("--gradient_accumulation_steps=2", "give it to Accelerator() in the script"),
        ("--no_python", "give a Python script"),
        ("--mixed_precision=fp4", "--mixed_precision=fp4: give one of no, fp16, bf16, fp8"),
        ("--fsdp_min_num_params=many", "--fsdp_min_num_params=many: give a whole number"),
        ("--fsdp_offload_params=maybe", "--fsdp_offload_params=maybe: give true or false"),
        ("--fp8_override_linear_precision=true", "give three of true or false"),
        ("--fsdp_auto_wrap_policy=a\0b", "printable characters"),
        (f"--config_file={'a' * 5000}", "give a path of at most 4096 characters"),
        ("--num_processes=0", "--num_processes=0: give a number from 1 to"),
        ("--num_machines=two", "--num_machines=two: give a number from 1 to 100000"),
        ("--multi_gpu --num_processes=1", "it needs two processes or more"),
        ("--cpu --use_fsdp", "--cpu, --use_fsdp: they exclude each other"),
        ("--use_parallelism_config", "use_parallelism_config: it needs FSDP of version 2"),
        ("--num_process=2", "accelerate has no such flag: it may be --num-processes"),
        ("--frobnicate", "--frobnicate: accelerate has no such flag"),
        ("--cpu=yes", "--cpu takes no value"),
        ("--num_processes", "--num_processes=train.py: give a number"),
    ],
)
def test_flags_that_are_not_supported_are_refused_by_name(line: str, words: str) -> None:
    with pytest.raises(FlagError, match=re.escape(words)):
        read_accelerate([*written(line), "train.py"])


def test_other_commands_of_accelerate_start_nothing() -> None:
    words = ["accelerate", "config"]
    with pytest.raises(ValueError, match=r"accelerate config: it starts no ranks: write \[accel"):
        user_script({"spec": {"containers": [{"name": "trainer", "command": words}]}})


def job(line: str, **spec: Any) -> TrainingJobSpec:
    command = ["accelerate", "launch", *written(line), "train.py"]
    storage = {"persistentVolumeClaim": {"claimName": "shared"}}
    return TrainingJobSpec.model_validate(
        {
            "checkpoint": {"storage": storage},
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
            **spec,
        }
    )


@pytest.mark.parametrize(
    ("line", "spec", "ranks"),
    [
        ("--num_processes=4", {}, 4),
        ("--num_processes=4", {"replicas": 2}, 2),
        ("--num_processes=4 --num_machines=2", {"replicas": 2}, 2),
        ("--num_machines=2", {"replicas": 2}, "auto"),
        ("--num_processes=4", {"replicas": 2, "nprocPerNode": 2}, 2),
        (
            "--num_processes=6 --num_machines=3",
            {"replicas": 2, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}},
            2,
        ),
    ],
)
def test_processes_are_the_ranks_of_all_workers(
    line: str, spec: dict[str, Any], ranks: int | str
) -> None:
    assert job(line, **spec).nproc_per_node == ranks


ELASTIC = {"replicas": 2, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}


@pytest.mark.parametrize(
    ("line", "spec", "words"),
    [
        (
            "--num_processes=3",
            {"replicas": 2},
            "--num_processes is 3 in all, which cannot be share",
        ),
        (
            "--num_machines=3",
            {"replicas": 2},
            "--num_machines is 3, and the job has 2 to 2 workers",
        ),
        ("--num_machines=4", ELASTIC, "--num_machines is 4, and the job has 1 to 3 workers"),
        ("--num_processes=4", ELASTIC, "set spec.nprocPerNode to the ranks of one worker"),
        (
            "--num_processes=4",
            {"replicas": 2, "nprocPerNode": 4},
            "nprocPerNode is 4, and --num_processes 4, shared by 2 workers, in",
        ),
        ("--max_restarts=2", {"restartPolicy": {"maxRestarts": 4}}, "maxRestarts is 4, and --max"),
        ("--tee=3", {}, "--tee=3: only launcher torchrun supports this"),
        (
            "--config_file=a.yaml",
            {"launcher": "torchrun"},
            "--config_file=a.yaml: stock torchrun does not read it: write its settings as flags",
        ),
    ],
)
def test_flags_that_contradict_the_spec_are_refused_with_both_numbers(
    line: str, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        job(line, **spec)


def test_a_config_file_leaves_the_variables_to_the_rank() -> None:
    words = ["--config_file", "a.yaml", "--num_processes=2", "--cpu", "x.py"]
    flags, rest = read_accelerate(words)
    assert rest == ["x.py"]
    assert flags.variables == {}
    assert flags.accelerate is not None
    assert flags.accelerate.model_dump() == {
        "config_file": "a.yaml",
        "settings": {"cpu": True},
        "counts": {"num_processes": 2},
    }
