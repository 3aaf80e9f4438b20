"""What to train and how: the `trainer`, `checkpoint` and `resume` sections of a TrainingJob.

The same models are the local trainer's config file, a part of the custom resource and what every
rank receives, so that a value means the same everywhere. Torch-free. What the models cannot know
(whether a path exists, how many ranks there are) is checked where it is known.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from regroup_trainer.protocol.strategies import (
    BUCKET_OPTIONS,
    STRATEGIES,
    STRATEGY_OPTIONS,
    StrategyName,
)

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class Section(BaseModel):
    """A part of the spec: immutable, camelCase in YAML and JSON, unknown fields are an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class RotaryScaling(Section):
    """Stretches the long wavelengths of rotary positions, as Llama 3.1 does (`llama3`)."""

    factor: Annotated[float, Field(ge=1, le=1024)]
    """Long wavelengths are multiplied by it; 8 in Llama 3.1, 32 in Llama 3.2."""
    low_frequency_factor: Annotated[float, Field(gt=0)] = 1.0
    """Wavelengths above `originalLength` / this are multiplied by all of `factor`."""
    high_frequency_factor: Annotated[float, Field(le=1024)] = 4.0
    """Wavelengths below `originalLength` / this stay as they are."""
    original_length: Annotated[int, Field(ge=1, le=2**24)] = 8192
    """Length of the context before the scaling, in tokens."""

    @model_validator(mode="after")
    def _a_range_between_the_two(self) -> Self:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if not low < high:
            raise ValueError(
                f"lowFrequencyFactor {low} must be below highFrequencyFactor {high}: choose another"
            )
        return self


class Dimensions(Section):
    """The size of a model."""

    layers: Annotated[int, Field(ge=1, le=1024)]
    """Transformer blocks; residual blocks of a `resnet`, a multiple of 3."""
    heads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Attention heads; must divide `width`."""
    width: Annotated[int, Field(ge=8, le=65536)]
    """Channels of the residual stream (C); of the first stage of a `resnet`."""
    key_value_heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Heads of keys and values (`llama`); must divide `heads`, which it equals by default."""
    feed_forward_width: Annotated[int, Field(ge=8, le=2**20)] | None = None
    """Inner channels of the perceptron (`llama`); 8/3 of `width` by default."""
    tied_embeddings: bool = True
    """Whether input and output share their embedding (`llama`)."""
    rotary_base: Annotated[float, Field(ge=1, le=1e9)] = 10000.0
    """Base of the wavelengths of rotary positions."""
    rotary_scaling: RotaryScaling | None = None
    """Scaling of these wavelengths for long contexts; `1b` and `3b` have it."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} must be a multiple of 2 x heads ({self.heads}), since rotary "
                "positions turn pairs "
                f"of channels of a head: choose another width or number of heads"
            )
        if self.heads % (self.key_value_heads or 1):
            raise ValueError(
                f"keyValueHeads {self.key_value_heads} must divide heads ({self.heads}): choose "
                "another"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an absent scaling: checkpoints and coordinators of 0.1 do not know it."""
        fields: dict[str, Any] = serialize(self)
        if self.rotary_scaling is None:
            for name in ("rotary_scaling", "rotaryScaling"):
                fields.pop(name, None)
        return fields

    def as_field(self) -> str:
        """The field of the spec that gives this size, as one line of YAML."""
        given = self.model_dump_json(by_alias=True, exclude_defaults=True)
        return f"model.dimensions: {given}"


_LLAMA_3_2 = RotaryScaling(factor=32)


def _llama3(
    layers: int,
    heads: int,
    width: int,
    feed_forward_width: int,
    *,
    tied: bool,
    scaling: RotaryScaling | None = None,
) -> Dimensions:
    return Dimensions(
        layers=layers,
        heads=heads,
        width=width,
        key_value_heads=8,
        feed_forward_width=feed_forward_width,
        tied_embeddings=tied,
        rotary_base=500000.0,
        rotary_scaling=scaling,
    )


PRESETS: dict[str, dict[str, Dimensions]] = {
    "gpt": {
        "tiny": Dimensions(layers=2, heads=2, width=32),
        "1m": Dimensions(layers=5, heads=4, width=128),
        "10m": Dimensions(layers=6, heads=6, width=384),
        "124m": Dimensions(layers=12, heads=12, width=768),
        "350m": Dimensions(layers=24, heads=16, width=1024),
        "1.3b": Dimensions(layers=24, heads=16, width=2048),
    },
    "llama": {
        "tiny": Dimensions(layers=2, heads=4, width=64, key_value_heads=2, feed_forward_width=192),
        "10m": Dimensions(layers=6, heads=6, width=384, key_value_heads=2, feed_forward_width=1024),
        "1b": _llama3(16, 32, 2048, 8192, tied=True, scaling=_LLAMA_3_2),
        "3b": _llama3(28, 24, 3072, 8192, tied=True, scaling=_LLAMA_3_2),
        "8b": _llama3(32, 32, 4096, 14336, tied=False),
        "70b": _llama3(80, 64, 8192, 28672, tied=False),
    },
    "resnet": {
        "tiny": Dimensions(layers=3, width=8),
        "20": Dimensions(layers=9, width=16),
        "56": Dimensions(layers=27, width=16),
    },
}
"""Model name -> preset name -> size. Sources: GPT-2 and GPT-3 papers, Llama 3 and 3.2 releases, He
et al., 2016.
"""

DEFAULT_PRESETS = {"gpt": "1m", "llama": "10m", "resnet": "20"}

VOCABULARIES: dict[str, dict[str, int]] = {
    "gpt": {"tiny": 256, "1m": 256, "10m": 256, "124m": 50257, "350m": 50257, "1.3b": 50257},
    "llama": {"tiny": 256, "10m": 256, "1b": 128256, "3b": 128256, "8b": 128256, "70b": 128256},
}
"""Model name -> preset name -> the vocabulary that gives it the parameters of its name; in a job
the data decides.
"""


class ModelConfig(Section):
    """Which model, and how large."""

    name: Literal["gpt", "llama", "resnet"] = "gpt"
    """`gpt` and `llama`: decoder-only transformers over tokens; `resnet`: classifies images."""
    preset: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """A named size; `1m` (gpt), `10m` (llama) or `20` (resnet) without `dimensions`."""
    dimensions: Dimensions | None = None
    """A size of one's own."""
    attention: Literal["auto", "flash", "efficient", "cudnn", "math"] = "auto"
    """Kernel of the attention; `auto`: the one that torch prefers on the device."""
    loss_chunks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parts in which output head and loss are computed; more need less memory (transformers)."""
    initialize_from: Path | None = None
    """Folder of safetensors, as Hugging Face lays them out, whose weights a new run begins with."""

    @model_validator(mode="after")
    def _one_known_size(self) -> Self:
        if self.preset and self.dimensions:
            raise ValueError("preset and dimensions both give the size: keep one of them")
        if self.preset and self.preset not in PRESETS[self.name]:
            raise ValueError(
                f"preset {self.preset!r} is unknown: use one of {', '.join(PRESETS[self.name])}"
            )
        if self.name == "resnet" and self.size.layers % 3:
            raise ValueError(
                f"layers {self.size.layers} must be a multiple of 3, the stages of a resnet"
            )
        if self.name == "resnet" and self.size.rotary_scaling:
            raise ValueError(
                "dimensions.rotaryScaling: of no meaning for a resnet, which has no positions: "
                "remove it"
            )
        if self.name == "resnet" and self.loss_chunks > 1:
            raise ValueError(
                f"lossChunks {self.loss_chunks} needs a vocabulary: leave it at 1 for a resnet"
            )
        return self

    @property
    def size(self) -> Dimensions:
        """The dimensions that the preset stands for, or those given."""
        return self.dimensions or PRESETS[self.name][self.preset or DEFAULT_PRESETS[self.name]]


class DataConfig(Section):
    """Where the samples come from. Their order depends on the seed alone, never on the world
    size.
    """

    source: Literal["text", "tokens", "huggingface", "images", "synthetic"] = "text"
    """`text` files, `tokens` of nanoGPT or llm.c, a `huggingface` dataset directory."""
    paths: Annotated[tuple[Path, ...], Field(max_length=256)] = ()
    """Files and folders, as the workers see them; text has a default: 2.5 MB of source code."""
    pattern: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Names of files in folders, at any depth; `*.py` of text, `*.bin` of tokens."""
    held_out_percent: Annotated[int, Field(ge=0, le=50)] = 5
    """Share at the end that is kept for evaluation, without `heldOutPaths`."""
    held_out_paths: Annotated[tuple[Path, ...], Field(max_length=256)] = ()
    """Files and folders for evaluation alone (text, tokens, huggingface)."""
    tokenizer: Literal["byte", "cl100k", "o200k"] = "byte"
    """Vocabulary that text is turned into: bytes, or a byte-pair encoding."""
    column: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """Of a huggingface dataset: strings, or lists of integers that are tokens."""
    name: Literal["digits", "mnist5k"] = "digits"
    """Which of the built-in sets of images."""
    samples: PositiveInt | None = None
    """Synthetic samples per epoch; 2^20 by default."""
    classes: PositiveInt | None = None
    """Vocabulary of tokens (default: their format's, 50257 or 128256) or synthetic ones (256)."""

    @model_validator(mode="after")
    def _fields_of_the_source(self) -> Self:
        allowed = {"source", *_DATA_FIELDS[self.source]}
        foreign = [
            to_camel(name)
            for name, field in DataConfig.model_fields.items()
            if name not in allowed and getattr(self, name) != field.default
        ]
        if foreign:
            raise ValueError(
                f"{', '.join(foreign)}: of no meaning with source {self.source!r}: remove or "
                "change one"
            )
        return self


_DATA_FIELDS: dict[str, frozenset[str]] = {
    "text": frozenset({"paths", "pattern", "held_out_percent", "held_out_paths", "tokenizer"}),
    "tokens": frozenset({"paths", "pattern", "held_out_percent", "held_out_paths", "classes"}),
    "huggingface": frozenset(
        {"paths", "held_out_percent", "held_out_paths", "tokenizer", "column", "classes"}
    ),
    "images": frozenset({"name", "held_out_percent"}),
    "synthetic": frozenset({"samples", "classes", "held_out_percent"}),
}
"""data.source -> the fields that it reads."""


class ParallelismConfig(Section):
    """How the ranks share the work."""

    strategy: StrategyName = "ddp"
    """`ddp` copies the model; `zero` shards its optimizer state, `fsdp` all of it; `dp`: to teach.
    """
    shard_group_size: PositiveInt | None = None
    """Ranks that share one copy of the model (`hsdp`); copies are made of the rest."""
    tensor_parallel: PositiveInt = 1
    """Ranks that share each layer."""
    pipeline_parallel: PositiveInt = 1
    """Ranks that share the stack of layers."""
    pipeline_schedule: Literal["1f1b", "interleaved"] = "1f1b"
    """`interleaved`: two stages a rank, which idles less and sends more."""
    context_parallel: PositiveInt = 1
    """Ranks that share each sequence."""
    bucket_megabytes: Annotated[int, Field(ge=1, le=4096)] = 25
    """Gradients reduced at once, while the backward pass goes on (`ddp`, `zero`)."""
    static_graph: bool = False
    """Promise that each step runs the same operations: fewer checks (`ddp`, `zero`)."""
    gradient_hook: Literal["none", "bf16", "powersgd"] = "none"
    """Compression of gradients on their way, lossy but for `none` (`ddp`, `zero`)."""
    gradient_rank: Annotated[int, Field(ge=1, le=1024)] = 4
    """Rank of powersgd's approximation of a matrix; more is nearer to the gradient."""
    reshard_after_forward: bool = True
    """Free gathered parameters until the backward pass: less memory (`fsdp`, `hsdp`)."""
    cpu_offload: bool = False
    """Keep shards and optimizer in the host's memory (`fsdp`, `hsdp`)."""

    @model_validator(mode="after")
    def _options_have_a_meaning(self) -> Self:
        changed = {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
        own = STRATEGIES[self.strategy].options
        if foreign := sorted((changed & STRATEGY_OPTIONS) - own):
            others = [name for name, other in STRATEGIES.items() if other.options >= {*foreign}]
            instead = f", or use one of {', '.join(others)}" if others else ""
            fields = ", ".join(map(to_camel, foreign))
            raise ValueError(
                f"{fields}: of no meaning with strategy {self.strategy!r}: remove it{instead}"
            )
        if self.is_model_parallel and (buckets := sorted(changed & BUCKET_OPTIONS)):
            raise ValueError(
                f"{', '.join(map(to_camel, buckets))}: of no meaning with model parallelism "
                f"({self.replica_group}): remove it"
            )
        return self

    @model_validator(mode="after")
    def _shard_groups_are_hybrid(self) -> Self:
        needed = STRATEGIES[self.strategy].has_shard_groups
        if needed != (self.shard_group_size is not None):
            raise ValueError(
                f"strategy {self.strategy!r} with shardGroupSize {self.shard_group_size}: strategy "
                "hsdp needs the number of ranks that share a copy of the model, and only hsdp "
                "takes it"
            )
        return self

    @property
    def stages_per_rank(self) -> int:
        """Parts of the stack of layers that a rank holds."""
        return 2 if self.pipeline_schedule == "interleaved" else 1

    @property
    def is_model_parallel(self) -> bool:
        """Whether tensor, pipeline or context parallelism is in use."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel > 1

    @property
    def replica_group_ranks(self) -> int:
        """Ranks that hold one copy of the model together. The world size is a multiple of it."""
        shared = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        return shared * (self.shard_group_size or 1)

    @property
    def replica_group(self) -> str:
        """Where that number comes from, by the fields' names."""
        sizes = {
            "shardGroupSize": self.shard_group_size or 1,
            "tensorParallel": self.tensor_parallel,
            "pipelineParallel": self.pipeline_parallel,
            "contextParallel": self.context_parallel,
        }
        return (
            " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one rank"
        )


class OptimizerConfig(Section):
    """The update rule, with linear warm-up and a cosine decay."""

    name: Literal["adamw", "muon"] = "adamw"
    """The update rule; `muon`: for the blocks' matrices, AdamW for the rest."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a share of the peak."""
    warmup_steps: NonNegativeInt = 20
    """Steps of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Decay of matrices; vectors (norms, biases) are not decayed."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moment."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the denominator."""


class TrainingConfig(Section):
    """How long and in which batches and precision the built-in loop trains."""

    steps: PositiveInt = 500
    """Optimizer steps in all. May grow while the job runs."""
    global_batch_size: Annotated[int, Field(ge=1, le=2**20)] = 24
    """Samples per step over all ranks, whatever the world size; it need not be divisible by it."""
    micro_batch_size: Annotated[int, Field(ge=1, le=2**20)] = 8
    """Samples per forward pass on a rank; what does not fit at once is accumulated."""
    sequence_length: Annotated[int, Field(ge=2, le=2**20)] = 128
    """Tokens per sample (T)."""
    gradient_clip: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Largest gradient norm; 0 does not clip."""
    non_finite: Literal["skip", "stop"] = "skip"
    """A step with a NaN or infinite loss is left out (ten in a row: failure), or fails the job."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of forward and backward; parameters and optimizer state stay fp32."""
    compile: bool = False
    """Compile the blocks with torch.compile."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations in the backward pass to save memory."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of initial weights and sample order."""
    deterministic: Literal["rounding", "exact"] = "rounding"
    """`rounding`: equal up to fp32 rounding for any world sizes; `exact`: bit-identical."""


def micro_batch_shape(
    samples: int, ranks: int, micro_batch_size: int, pipeline: int = 1
) -> tuple[int, int]:
    """(Number of micro-batches, samples of each) into which every one of `ranks` data-parallel
    ranks divides its share of a global batch of `samples`.

    The number is a multiple of `pipeline`, the ranks of a pipeline, so that none of these idles.
    """
    largest_share = -(-samples // ranks)
    passes = -(-largest_share // (micro_batch_size * pipeline)) * pipeline
    return passes, -(-largest_share // passes)


class EvaluationConfig(Section):
    """Loss on the held-out part."""

    every_steps: NonNegativeInt = 0
    """Steps between evaluations; 0: never."""
    samples: Annotated[int, Field(ge=1, le=2**20)] = 48
    """Held-out samples per evaluation."""


class TrainConfig(Section):
    """The built-in trainer's configuration."""

    model: ModelConfig = ModelConfig()
    """The model: a preset, or sizes of your own."""
    data: DataConfig = DataConfig()
    """The samples to train on, and their tokenizer."""
    parallelism: ParallelismConfig = ParallelismConfig()
    """How ranks share the work."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The update rule and its schedule."""
    training: TrainingConfig = TrainingConfig()
    """Steps, batch, precision."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out loss."""

    @model_validator(mode="after")
    def _exactness_is_for_copies(self) -> Self:
        if self.training.deterministic == "exact":
            layout = self.parallelism
            plain = ParallelismConfig(bucket_megabytes=layout.bucket_megabytes)
            if layout != plain:
                raise ValueError(
                    "training.deterministic: 'exact' sums the gradients of whole copies of the "
                    "model in one fixed "
                    "order: it needs parallelism.strategy ddp without other options; use "
                    "'rounding' with these"
                )
        return self


class CheckpointPolicy(Section):
    """When to save and what to keep; where is the storage's matter."""

    interval_seconds: PositiveInt | None = None
    """Seconds between checkpoints, by rank 0's clock; 300 when `intervalSteps` is not given either.
    """
    interval_steps: PositiveInt | None = None
    """Steps between checkpoints; exclusive with `intervalSeconds`."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many of the newest checkpoints stay."""
    keep_every_steps: PositiveInt | None = None
    """Checkpoints at multiples of this step are never deleted."""
    on_termination: Literal["Save", "Skip"] = "Save"
    """Whether suspend and deletion save first."""
    memory_snapshot_steps: NonNegativeInt | None = None
    """Steps between snapshots in memory; unset: 10, and 2 seconds at least; 0: none."""

    @model_validator(mode="after")
    def _one_interval(self) -> Self:
        if self.interval_seconds and self.interval_steps:
            raise ValueError("intervalSeconds and intervalSteps are both given: keep one of them")
        return self

    @property
    def seconds(self) -> int | None:
        """Seconds between checkpoints, None when steps decide."""
        return None if self.interval_steps else (self.interval_seconds or 300)


class ResumePolicy(Section):
    """What a job starts from."""

    policy: Literal["Latest", "Never", "Step", "Job"] = "Latest"
    """`Latest`: the newest whole checkpoint of this job; `Never`: from scratch; `Step`, `Job`: as
    named below.
    """
    step: NonNegativeInt | None = None
    """With `Step`: the checkpoint to start from."""
    job_name: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    """With `Job`: the job of this namespace whose newest checkpoint to start from."""
