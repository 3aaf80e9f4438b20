"""`regroup plan` as people use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from regroup.cli.command_line import main
from regroup.cli.manifest import read_documents
from regroup.cli.validation import validate
from tests.support.specs import VALID_JOB

CASES = [
    ("--params", "124e6", "--nodes", "1"),
    ("--params", "100e9", "--nodes", "8", "--gpus-per-node", "8", "--gpu", "a100-80"),
    ("--params", "100e9", "--nodes", "8", "--gpus-per-node", "8", "--gpu", "a100-40"),
    ("--model", "llama:8b", "--nodes", "2", "--gpu", "h100-80"),
    (
        "--model",
        "gpt:1m",
        "--nodes",
        "2",
        "--gpu",
        "cpu",
        "--global-batch-size",
        "24",
        "--sequence-length",
        "128",
    ),
    ("--params", "3e9", "--nodes", "4", "--gpu", "v100-32"),
]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plan", *arguments])
    return result.exit_code, result.output


def answer(*arguments: str) -> dict[str, Any]:
    code, output = run(*arguments, "--json")
    assert code == 0, output
    value: dict[str, Any] = json.loads(output)
    return value


def plain(output: str) -> str:
    """The text without the frame and the line breaks of a usage error."""
    return " ".join(output.replace("│", " ").split())


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(VALID_JOB)
    return file


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_the_recommended_job_is_valid(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "planned.yaml"
    file.write_text(answer(*arguments)["job"])
    (document,) = read_documents(file)
    assert validate(document) == []


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_tables_fit_a_terminal_of_a_hundred_columns_and_cut_nothing_off(
    arguments: tuple[str, ...],
) -> None:
    code, output = run(*arguments)
    assert code == 0
    tables = [line for line in output.splitlines() if "─" in line]
    assert max(map(len, tables)) <= 100
    assert "…" not in output


def test_a_size_at_which_starts_take_long_is_a_warning_with_numbers() -> None:
    large = ("--params", "8e9", "--gpu", "h100-80", "--gpus-per-node", "8", "--nodes")
    _, output = run(*large, "128")
    assert (
        "warning: gloo connects all 1,024 ranks to each other at each start and recovery: 1,023 "
        "sockets a rank, 8,184 a machine (raise its limit of open files), and 8.8 GB of addresses"
    ) in plain(output)
    assert "1,023 sockets" in answer(*large, "128")["warning"]
    assert "warning" not in run(*large, "63")[1]
    assert answer(*large, "63")["warning"] == ""


def test_wide_tables_lose_no_digit() -> None:
    code, output = run("--params", "1e12", "--nodes", "1024", "--sequence-length", "8192")
    assert code == 0
    assert "…" not in output
    assert "190,5" in output
    assert output.startswith("1,002 billion parameters")


def test_links_are_published_only_where_somebody_measured_them() -> None:
    _, measured = run("--params", "1e9", "--nodes", "1", "--gpu", "a100-80")
    _, other = run("--params", "1e9", "--nodes", "1", "--gpu", "cpu")
    assert "On links in a machine: 80% of the peak, published" in plain(measured)
    assert "On links in a machine: 80% of the peak, assumed (as NVLink of the A100)" in plain(other)


def test_layouts_that_fit_and_are_refused_are_listed_with_the_reason(job: Path) -> None:
    job.write_text(VALID_JOB.replace("{strategy: fsdp}", "{strategy: ddp, bucketMegabytes: 50}"))
    _, output = run(str(job), "--gpu", "cpu")
    text = plain(output)
    assert "refused: fsdp 3: spec.trainer.parallelism: bucketMegabytes: of no meaning" in text
    assert "not yet" not in text


def test_the_printed_job_can_be_pasted() -> None:
    _, output = run(*CASES[1])
    pasted = yaml.safe_load(output[output.index("apiVersion") :])
    assert pasted["spec"]["replicas"] == 8
    assert pasted["spec"]["resources"]["limits"] == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize("gpu", ["a100-40", "a100-80"])
def test_the_examples_jobs_are_those_that_are_printed(gpu: str) -> None:
    arguments = ("--params", "100e9", "--nodes", "8", "--gpus-per-node", "8", "--gpu", gpu)
    file = Path(__file__).parents[3] / f"examples/5-hundred-billion/planned/{gpu}.yaml"
    assert (
        file.read_text()
        == f"# Printed by: regroup plan {' '.join(arguments)}\n{answer(*arguments)['job']}"
    )


def test_a_jobs_own_layout_stands_once_in_the_tables(job: Path) -> None:
    _, output = run(str(job), "--gpu", "cpu", "--nodes", "4")  # 6 samples, microBatchSize is 8
    memory, *_ = output.split("Time of a step")
    assert sum(line.startswith(" fsdp 4") for line in memory.splitlines()) == 1


def test_the_examples_page_shows_the_tables_that_are_printed() -> None:
    page = (Path(__file__).parents[3] / "examples/5-hundred-billion/README.md").read_text()
    _, output = run(*CASES[1])
    tables = output[output.index("global batch") : output.index("apiVersion")]
    assert "\n".join(line.rstrip() for line in tables.splitlines()).strip() in page


def test_a_jobs_own_layout_is_judged_and_all_else_of_it_stays(job: Path) -> None:
    found = answer(str(job), "--gpu", "cpu")
    assert found["asked"]["fits"]
    planned, given = yaml.safe_load(found["job"])["spec"], yaml.safe_load(VALID_JOB)["spec"]
    assert planned["checkpoint"] == given["checkpoint"]
    assert planned["trainer"]["training"]["steps"] == given["trainer"]["training"]["steps"]


def spec_for(job: Path, changed: str, *options: str) -> dict[str, Any]:
    """The spec that is printed for VALID_JOB with other parallelism, or other bounds."""
    job.write_text(changed)
    spec: dict[str, Any] = yaml.safe_load(answer(str(job), "--gpu", "cpu", *options)["job"])["spec"]
    return spec


def test_options_of_parallelism_stay_and_layouts_without_them_are_refused(job: Path) -> None:
    options = "{strategy: ddp, bucketMegabytes: 50, staticGraph: true}"
    planned = spec_for(job, VALID_JOB.replace("{strategy: fsdp}", options))
    assert planned["trainer"]["parallelism"] == yaml.safe_load(options)
    refused = answer(str(job), "--gpu", "cpu")["candidates"]
    reasons = {c["refusal"] for c in refused if c["strategy"] == "fsdp"}
    field = "spec.trainer.parallelism: bucketMegabytes, staticGraph: of no meaning with"
    assert all(reason.startswith(field) for reason in reasons)


@pytest.mark.parametrize(
    "option",
    [
        "cpuOffload: true",
        "reshardAfterForward: false",
        "pipelineSchedule: interleaved",
    ],
)
def test_options_that_the_estimates_do_not_know_are_refused_by_name(job: Path, option: str) -> None:
    job.write_text(VALID_JOB.replace("strategy: fsdp", f"strategy: fsdp, {option}"))
    code, output = run(str(job))
    assert code == 2
    field = option.partition(":")[0]
    assert f"spec.trainer.parallelism.{field}: is planned only as" in plain(output)


def test_a_compressing_hook_is_refused_by_name(job: Path) -> None:
    job.write_text(VALID_JOB.replace("strategy: fsdp", "strategy: ddp, gradientHook: bf16"))
    code, output = run(str(job))
    assert code == 2
    assert "spec.trainer.parallelism.gradientHook: is planned only as none" in plain(output)


def test_the_precision_that_is_asked_for_is_planned_and_printed(job: Path) -> None:
    found = answer(str(job), "--gpu", "a100-80", "--precision", "bf16")
    assert yaml.safe_load(found["job"])["spec"]["trainer"]["training"]["precision"] == "bf16"
    assert found["cluster"]["gpu"]["bf16_flops"]


def test_more_machines_than_the_bounds_allow_move_the_bounds(job: Path) -> None:
    planned = spec_for(job, VALID_JOB, "--nodes", "8")
    assert planned["replicas"] == 8
    assert planned["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 8}


def test_fewer_machines_than_the_layout_fits_are_no_lower_bound(job: Path) -> None:
    large = VALID_JOB.replace("preset: 1m", "dimensions: {layers: 97, heads: 16, width: 2048}")
    large = large.replace("{steps: 500}", "{steps: 500, precision: bf16}")
    job.write_text(large.replace("{minReplicas: 2, maxReplicas: 4}", "{minReplicas: 1}"))
    devices = ("--gpu", "l40s", "--nodes", "8", "--gpus-per-node", "1")
    found = answer(str(job), *devices, "--global-batch-size", "512", "--sequence-length", "1024")
    bounds = yaml.safe_load(found["job"])["spec"]["elasticPolicy"]
    assert 1 < bounds["minReplicas"] < bounds["maxReplicas"] == 8


def test_devices_of_a_machine_are_its_limit_too(job: Path) -> None:
    limited = VALID_JOB.replace(
        "  trainer:", "  resources: {limits: {nvidia.com/gpu: 2}}\n  trainer:"
    )
    planned = spec_for(job, limited, "--gpus-per-node", "4")
    assert planned["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert planned["nprocPerNode"] == 4


def test_devices_of_the_pod_template_count_as_on_a_cluster(job: Path) -> None:
    limits = "{limits: {nvidia.com/gpu: 2}}"
    template = f"{{spec: {{containers: [{{name: trainer, resources: {limits}}}]}}}}"
    job.write_text(VALID_JOB.replace("  trainer:", f"  template: {template}\n  trainer:"))
    assert answer(str(job), "--gpu", "a100-80", "--nodes", "1")["cluster"]["gpus_per_node"] == 2


def test_a_job_without_the_built_in_trainer_is_refused(job: Path) -> None:
    command = "containers: [{name: trainer, image: mine, command: [python, train.py]}]"
    script = f"  template: {{spec: {{{command}}}}}\n"
    job.write_text(VALID_JOB[: VALID_JOB.index("  trainer:")] + script)
    code, output = run(str(job))
    assert code == 2
    assert "spec.trainer: is missing: a plan knows the models of the built-in" in plain(output)


def test_a_vocabulary_that_the_jobs_data_contradicts_is_refused(job: Path) -> None:
    code, output = run(str(job), "--vocabulary", "1000")
    assert code == 2
    assert "--vocabulary 1000: the job's data has 256" in plain(output)


def test_what_ranks_refuse_is_not_recommended(job: Path) -> None:
    chunked = VALID_JOB.replace("preset: 1m}", "preset: 1m, lossChunks: 4}")
    job.write_text(chunked)
    devices = ("--nodes", "2", "--gpus-per-node", "2")
    found = answer(str(job), "--gpu", "cpu", *devices)["candidates"]
    split = [c for c in found if c["tensor"] * c["pipeline"] > 1]
    assert split
    assert all("lossChunks 4 needs the whole head" in c["refusal"] for c in split)


def test_nothing_fits_is_an_exit_code_with_a_sentence() -> None:
    code, output = run("--params", "1e12", "--nodes", "1")
    assert code == 1
    assert "nothing fits: the smallest" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give one of --params, --model or FILE, got none"),
        (("--params", "1e9", "--model", "gpt:1m"), "got --params and --model"),
        (("--params", "1e9"), "--nodes: is missing"),
        (("--params", "10", "--nodes", "1"), "--params 10: must lie between"),
        (("--model", "", "--nodes", "1"), "--model : is unknown"),
        (("--model", "gpt:2t", "--nodes", "1"), "--model gpt:2t: is unknown: use one of gpt:tiny"),
        (("--model", "resnet:20", "--nodes", "1"), "--model resnet:20: is unknown"),
        (("--params", "1e9", "--nodes", "1", "--gpu", "tpu"), "'tpu' is not one of"),
        (("--params", "nan", "--nodes", "1"), "'--params': nan is no number"),
        (
            ("--params", "1e9", "--nodes", "1", "--network-gbits", "nan"),
            "'--network-gbits': nan is no number",
        ),
        (
            ("--params", "1e9", "--nodes", "1", "--network-gbits", "inf"),
            "'--network-gbits': inf is not in the range",
        ),
        (
            ("--params", "1e9", "--nodes", "1", "--gpus-per-node", "1000000007"),
            "'--gpus-per-node': 1000000007 is not in the range 1<=x<=1024",
        ),
        (
            ("--params", "1e9", "--nodes", "100000", "--gpus-per-node", "1000"),
            "100000 machines with 1000 devices each: a plan is for at most 1048576 devices in all",
        ),
        (
            ("--params", "1e9", "--nodes", "1", "--gpu", "v100-32", "--precision", "bf16"),
            "a v100-32 has fp32 only",
        ),
    ],
)
def test_mistakes_name_the_option_and_what_to_do(arguments: tuple[str, ...], sentence: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert sentence in plain(output)


def test_context_parallelism_and_the_next_best_are_in_the_table() -> None:
    _, output = run(*CASES[1])
    names = [line.split("  ")[0].strip() for line in output.splitlines()]
    assert sum("cp " in name for name in names) >= 2  # in both tables
    found = answer(*CASES[1])
    fitting = [c["layout"] for c in found["candidates"] if c["fits"] and not c["refusal"]]
    assert {name.removesuffix(" *") for name in names} >= set(fitting[:5])


def test_a_job_with_slices_of_sequences_is_judged(job: Path) -> None:
    sliced = VALID_JOB.replace("{strategy: fsdp}", "{strategy: fsdp, contextParallel: 3}")
    sliced = sliced.replace("{steps: 500}", "{steps: 500, sequenceLength: 192}")
    job.write_text(sliced.replace("{minReplicas: 2, maxReplicas: 4}", "{minReplicas: 3}"))
    assert answer(str(job), "--gpu", "cpu")["asked"]["context"] == 3


def test_calibration_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, output = run("--params", "1e9", "--nodes", "1", "--calibrate")
    assert code == 1
    assert "pip install '.[trainer]' in a clone" in " ".join(output.split())


def test_another_device_than_the_planned_one_is_refused_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("regroup.cli.plan_command.device", lambda: "NVIDIA H200")
    monkeypatch.setattr("regroup.cli.plan_command.measure", lambda *_: pytest.fail("measured"))
    code, output = run("--params", "1e9", "--nodes", "1", "--calibrate")
    assert code == 1
    assert "this machine has NVIDIA H200, and the plan is for a100-80" in plain(output)


@pytest.mark.long
@pytest.mark.slow
def test_a_calibrated_plan_says_what_was_measured_and_what_was_assumed() -> None:
    arguments = ("--model", "gpt:1m", "--nodes", "2", "--gpus-per-node", "2", "--gpu", "cpu")
    code, output = run(*arguments, "--sequence-length", "64", "--calibrate")
    assert code == 0, output
    text = " ".join(output.split())
    assert "measured (a block of this model; its matrix products alone: " in text
    assert "measured (collectives over local ranks)" in text
    assert "Between machines: 80% of the peak, assumed" in text


def test_an_invalid_file_is_reported_with_its_line(job: Path) -> None:
    job.write_text(VALID_JOB.replace("steps: 500", "steps: -1"))
    code, output = run(str(job))
    assert code == 1
    assert "job.yaml:11: spec.trainer.training.steps" in output
