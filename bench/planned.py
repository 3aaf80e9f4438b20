"""`regroup plan` beside what others measured and published: memory and throughput.

    python -m bench.planned

prints the tables of docs/tasks/plan.md. Nothing in the plan is fitted to these runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regroup.planning.choice import Candidate, Question, examine
from regroup.planning.hardware import GPUS, cluster
from regroup.planning.layouts import Batch, Checkpointing, Grid, Layout
from regroup.planning.memory_estimate import FRAGMENTATION
from regroup.planning.transformer import Transformer, of_model
from regroup_trainer.protocol.config import ModelConfig

GIB = 2**30
BF16 = 2


def _llama3(preset: str) -> Transformer:
    config = ModelConfig.model_validate({"name": "llama", "preset": preset})
    return of_model(config, vocabulary=128256)


def _llama2(layers: int, width: int, key_value_heads: int, feed_forward_width: int) -> Transformer:
    """Sizes of Llama 2 (Touvron et al., 2023), with heads of 128 channels."""
    return Transformer(
        layers=layers,
        width=width,
        heads=width // 128,
        key_value_heads=key_value_heads,
        feed_forward_width=feed_forward_width,
        gated=True,
        vocabulary=32000,
        tied=False,
    )


LLAMA_8B, LLAMA_70B = _llama3("8b"), _llama3("70b")
LLAMA2_13B = _llama2(40, 5120, 40, 13824)
LLAMA2_70B = _llama2(80, 8192, 8, 28672)

H100_RUNS = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (December 2024)"
A100_RUNS = "torchtitan, docs/performance.md (2024, before the H100 results)"


@dataclass(frozen=True)
class PublishedRun:
    """A published run with FSDP over all devices and one micro-batch a step."""

    name: str
    model: Transformer
    gpu: str
    nodes: int
    micro_batch: int
    length: int
    checkpointing: Checkpointing
    tokens: float
    """Per second and device, measured without compilation."""
    compiled: float | None = None
    """The same with compilation."""
    gibibytes: float | None = None
    """Reserved memory, measured without compilation."""
    source: str = H100_RUNS

    def candidate(self) -> tuple[Question, Candidate]:
        """The plan for this run, as this trainer would run it."""
        machines = cluster(GPUS[self.gpu], self.nodes)
        batch = Batch(self.micro_batch * machines.devices, self.length)
        grid = Grid("fsdp", tensor=1, pipeline=1, shard=machines.devices, replicate=1)
        question = Question(self.model, batch, machines)
        return question, examine(question, Layout(grid, self.micro_batch, self.checkpointing))

    @property
    def planned_bytes(self) -> float:
        """Planned memory with what the published run keeps of activations, and with the plan's
        allowance for fragmentation: torchtitan reports what the allocator reserves.
        """
        _, candidate = self.candidate()
        fragmentation = FRAGMENTATION * GPUS[self.gpu].memory
        return candidate.memory.total - self._not_kept() + fragmentation

    @property
    def planned_tokens(self) -> float:
        """Planned tokens per second and device, with what the published run recomputes."""
        question, candidate = self.candidate()
        time = replace(
            candidate.time, compute=candidate.time.compute * (1 + self._also_recomputed())
        )
        return question.batch.tokens / time.total / question.cluster.devices

    def _not_kept(self) -> float:
        """Bytes of results that torchtitan's selective checkpointing does not keep and ours does:
        those of every second matrix product of a block.
        """
        if self.checkpointing != "selective":
            return 0.0
        outputs = sum(columns for _, columns in _second_products(self.model))
        return float(self.micro_batch * self.length * outputs * BF16 * self.model.layers)

    def _also_recomputed(self) -> float:
        """The operations of these products, as a share of both passes."""
        if self.checkpointing != "selective":
            return 0.0
        operations = sum(2 * rows * columns for rows, columns in _second_products(self.model))
        return operations * self.model.layers / self.model.flops_per_token(self.length)


def _second_products(model: Transformer) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of the second, fourth and sixth of a block's products: key, output of
    attention, and the widening one of the perceptron.
    """
    return (
        (model.width, model.key_value_width),
        (model.width, model.width),
        (model.width, model.feed_forward_width),
    )


RUNS = (
    PublishedRun("Llama 3.1 8B", LLAMA_8B, "h100-96", 1, 2, 8192, "selective", 5762, 6667, 82.4),
    PublishedRun("Llama 3.1 8B", LLAMA_8B, "h100-96", 16, 2, 8192, "selective", 5605, 6514, 67.0),
    PublishedRun(
        "Llama 3 8B", LLAMA_8B, "a100-80", 8, 1, 8192, "selective", 2973, source=A100_RUNS
    ),
    PublishedRun("Llama 3 70B", LLAMA_70B, "a100-80", 8, 1, 8192, "full", 331, source=A100_RUNS),
    PublishedRun("Llama 2 13B", LLAMA2_13B, "a100-80", 8, 2, 4096, "none", 2162, source=A100_RUNS),
    PublishedRun(
        "Llama 2 13B", LLAMA2_13B, "a100-80", 8, 2, 4096, "selective", 1904, source=A100_RUNS
    ),
    PublishedRun(
        "Llama 2 70B", LLAMA2_70B, "a100-80", 8, 1, 4096, "selective", 355, source=A100_RUNS
    ),
    PublishedRun("Llama 2 70B", LLAMA2_70B, "a100-80", 8, 2, 4096, "full", 353, source=A100_RUNS),
)


def memory_table() -> str:
    """Markdown: runs whose memory was published."""
    rows = ["| run | measured | planned | error |", "|---|---|---|---|"]
    for run in RUNS:
        if run.gibibytes:
            planned = run.planned_bytes / GIB
            error = planned / run.gibibytes - 1
            rows.append(
                f"| {_title(run)} | {run.gibibytes:.1f} GiB | {planned:.1f} GiB | {error:+.0%} |"
            )
    return "\n".join(rows)


def throughput_table() -> str:
    """Markdown: tokens per second and device of all runs."""
    rows = ["| run | measured | compiled | planned | error |", "|---|---|---|---|---|"]
    for run in RUNS:
        planned = run.planned_tokens
        compiled = f"{run.compiled:,.0f}" if run.compiled else "-"
        against = [run.tokens, *([run.compiled] if run.compiled else [])]
        errors = ", ".join(f"{planned / measured - 1:+.0%}" for measured in against)
        figures = f"{run.tokens:,.0f} | {compiled} | {planned:,.0f} | {errors}"
        rows.append(f"| {_title(run)} | {figures} |")
    return "\n".join(rows)


def _title(run: PublishedRun) -> str:
    devices = run.nodes * GPUS[run.gpu].gpus_per_node
    sizes = f"{devices} x {run.gpu}, {run.micro_batch} x {run.length}"
    return f"{run.name}, {sizes}, {run.checkpointing}"


if __name__ == "__main__":
    print(memory_table(), throughput_table(), sep="\n\n")
