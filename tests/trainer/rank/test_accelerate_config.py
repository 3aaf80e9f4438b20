"""A config file of accelerate: held against the real library, and refused by name."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api.accelerate_flags import read_accelerate
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.accelerate_settings import SETTINGS, AccelerateLaunch
from regroup_trainer.rank.accelerate_config import SIZE_LIMIT, JobSize, environment
from tests.support.accelerate_library import library_variables

TWO = JobSize(fewest=1, most=1, wanted=1, ranks=2)
MADE = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {type}
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: {precision}
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
"""As `accelerate config` writes it."""
FSDP = """
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_state_dict_type: SHARDED_STATE_DICT
  offload_params: false
"""
FILES = {
    "plain": MADE.format(type="MULTI_GPU", precision="bf16"),
    "one": "distributed_type: 'NO'\n",
    "cpu": "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n",
    "debug": "distributed_type: 'NO'\ndebug: true\n",
    "fsdp": MADE.format(type="FSDP", precision="'no'") + FSDP,
    "fsdp on cpu": "distributed_type: FSDP\nuse_cpu: true\nnum_processes: 2\n",
    "parallel": MADE.format(type="FSDP", precision="'no'")
    + FSDP
    + "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n"
    "  parallelism_config_tp_size: 1\n",
    "dynamo": "distributed_type: 'NO'\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
    "  dynamo_use_fullgraph: true\n  mode: max-autotune\n",
    "old": "distributed_type: 'NO'\nfp16: true\ndynamo_backend: EAGER\n",
    "fp8": "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n"
    "  fp8_margin: 1\n",
}
LINES = [
    "",
    "--cpu",
    "--mixed_precision=fp16 --dynamo_backend=eager",
    "--use_fsdp --fsdp_version=1",
    "--multi_gpu",
]
LOWER = "ACCELERATE_FP8_BACKEND"
"""The library passes on the letters of the file, and reads them without regard to their case."""


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", FILES)
def test_the_variables_are_those_of_the_library(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(FILES[name])
    words = [f"--config_file={file}", *line.split()]
    expected = library_variables(words, monkeypatch)
    found = environment(launch(words), TWO)
    assert "OMP_NUM_THREADS" not in found  # torchrun's rule sets it
    expected.pop("OMP_NUM_THREADS")
    if LOWER in expected:
        expected[LOWER] = expected[LOWER].lower()
    assert found == expected


def launch(words: list[str]) -> AccelerateLaunch:
    made = read_accelerate([*words, "train.py"])[0].accelerate
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("machine_rank: 1", "machine_rank: 1: the job brings its own rendezvous"),
        ("main_process_ip: 10.0.0.1", "main_process_ip: 10.0.0.1: the job brings its own"),
        ("rdzv_backend: etcd", "rdzv_backend: etcd: the job brings its own rendezvous"),
        ("gpu_ids: 0,1", "gpu_ids: 0,1: the GPU limit of the worker"),
        ("gpu_ids: 0", "gpu_ids: 0: the GPU limit of the worker"),
        ("distributed_type: DEEPSPEED", "distributed_type: DEEPSPEED: DeepSpeed brings its own"),
        ("distributed_type: XLA", "distributed_type: XLA: give one of NO, MULTI_CPU, FSDP"),
        ("deepspeed_config: {zero_stage: 2}", "deepspeed_config: DeepSpeed brings its own"),
        ("megatron_lm_config: {a: 1}", "megatron_lm_config: Megatron-LM is not supported"),
        ("mpirun_config: {a: 1}", "mpirun_config: the job starts the ranks, without MPI"),
        ("compute_environment: AMAZON_SAGEMAKER", "AMAZON_SAGEMAKER: SageMaker starts jobs of"),
        ("tpu_name: a", "tpu_name: a: TPUs are not supported"),
        ("frobnicate: 1", "frobnicate: accelerate has no such key: remove it"),
        ("fsdp_config: {frobnicate: 1}", "fsdp_config.frobnicate: accelerate has no such setting"),
        ("fsdp_config: 3", "fsdp_config: it holds no keys with values"),
        ("fsdp_config: {fsdp_version: 3}", "fsdp_config.fsdp_version: 3: give one of 1, 2"),
        ("fsdp_config: {fsdp_version: [1]}", "fsdp_config.fsdp_version: it holds a list"),
        ("mixed_precision: fp4", "mixed_precision: fp4: give one of no, fp16, bf16, fp8"),
        ("num_processes: 8", "num_processes: 8 in all on 1 machines, and the job has 1 to 1 wo"),
        ("num_machines: 2", "num_machines: 2, and the job has 1 to 1 workers of 2 ranks: write 1"),
        ("num_processes: two", "num_processes: two: give a whole number from 1"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sync_module_states: false}",
            "fsdp_sync_module_states: false excludes fsdp_cpu_ram_efficient_loading",
        ),
        ("- a", "it holds no keys with values"),
        ("3: 4", "it holds no keys with values"),
        ("{", "it is neither YAML nor, as .json, JSON"),
        ("[" * 500, "it is neither YAML nor, as .json, JSON"),
        ("a: !!python/name:os.system", "it is neither YAML nor, as .json, JSON"),
        ("a: !!int ''", "line 1: a value is no int: correct it"),
        ("debug: !!bool abc", "line 1: a value is no bool: correct it"),
        ("a: 1\nb: !!timestamp abc", "line 2: a value is no timestamp: correct it"),
        ("gpu_ids: 1" + ":1" * 20000 + ".5", "line 1: a value is no float: correct it"),
        ("gpu_ids: &a [*a]", "line 1: *a stands in what it names"),
        ("debug: true\ndebug: false", "line 2: the key 'debug' stands twice"),
        ("fsdp_config: {version: 1, fsdp_version: 2}", "fsdp_config: fsdp_version stands twice"),
        ("dynamo_config: {backend: TVM}\ndynamo_backend: TVM", "dynamo_backend stands twice"),
        (
            "parallelism_config: {parallelism_config_cp_size: 0}",
            "parallelism_config_cp_size: 0: give a whole number from 1 and below 1000000000000000",
        ),
        ("fsdp_config: {0x" + "f" * 990 + ": 1}", "accelerate has no such setting"),
        ("a: " + "9" * 5000, "it is neither YAML nor, as .json, JSON"),
        ("#" * (SIZE_LIMIT + 1), f"it has more than {SIZE_LIMIT} bytes"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_key_and_the_file(
    content: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
        environment(AccelerateLaunch(config_file=str(file)), TWO)
    assert str(caught.value).startswith(f"--config_file {file}: ")
    assert len(str(caught.value)) < 1000


def test_names_that_refer_to_each_other_do_not_grow(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    file = tmp_path / "config.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(
        ConfigurationError, match=r"more than 20000 values \(\*a counts as what it names\)"
    ):
        environment(AccelerateLaunch(config_file=str(file)), TWO)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"debug": true, "debug": false}', "the key 'debug' stands twice"),
        ('{"gpu_ids": "\\ud800"}', r"gpu_ids: \ud800: the GPU limit of the worker"),
        ('{"\\ud800": 1}', r"\ud800: accelerate has no such key"),
        ('{"gpu_ids": ' + "[" * 900 + "]" * 900 + "}", "gpu_ids: [[[...]]]: the GPU limit"),
        ('{"num_processes": ' + "9" * 5000 + "}", "it is neither YAML nor, as .json, JSON"),
    ],
)
def test_odd_json_is_refused_with_its_key(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
        environment(AccelerateLaunch(config_file=str(file)), TWO)
    assert str(caught.value).isprintable()


TAGS = ["!!int", "!!bool", "!!float", "!!timestamp", "!!binary", "!!set", "!!omap", "!!null"]
PIECES = st.sampled_from(
    [
        *TAGS,
        *["&a ", "*a", "[", "]", "{", "}", ",", ": ", "\n", "\n  ", "- ", "<<: ", "? ", "'", '"'],
        *["0x_", "1:1", "2001-99-99", ".nan", "-5", "true", "null", "|", ">", "---\n", "%", "\t"],
        *SETTINGS,
        *["fsdp_config", "gpu_ids", "fp8_config", "distributed_type", "num_processes", "use_cpu"],
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(PIECES | st.text(max_size=2), max_size=12),
    key=st.sampled_from(["", "fsdp_config: ", "gpu_ids: ", "num_machines: ", "fp8_config: {"]),
)
def test_no_file_ends_in_another_error(
    parts: list[str], key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "hostile.yaml"
    file.write_text(key + "".join(parts))
    with contextlib.suppress(ConfigurationError):
        environment(AccelerateLaunch(config_file=str(file)), TWO)


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it is no file on this worker"):
        environment(AccelerateLaunch(config_file=str(tmp_path / name)), TWO)


def test_an_image_without_yaml_learns_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = tmp_path / "config.yaml"
    file.write_text("debug: true")
    with pytest.raises(ConfigurationError, match=r"config\.yaml: PyYAML is missing in this image"):
        environment(AccelerateLaunch(config_file=str(file)), TWO)


def test_a_json_file_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}')
    found = environment(AccelerateLaunch(config_file=str(file)), TWO)
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_the_counts_of_the_command_line_win_over_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("num_processes: 8\nnum_machines: 1\n")
    words = [f"--config_file={file}", "--num_processes=2"]
    assert environment(launch(words), TWO)["ACCELERATE_USE_CPU"] == "False"


def test_settings_of_the_library_that_it_forgets_are_applied(tmp_path: Path) -> None:
    """accelerate 1.15 never reads this key of the file."""
    file = tmp_path / "config.yaml"
    file.write_text("enable_cpu_affinity: true\n")
    found = environment(AccelerateLaunch(config_file=str(file)), TWO)
    assert found["ACCELERATE_CPU_AFFINITY"] == "1"
