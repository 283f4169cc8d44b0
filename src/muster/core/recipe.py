"""What to train: one recipe, as frozen, validated data. `core/recipes.py` reads and merges the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from muster.core import bits, float8
from muster.core.checkpoints import check_pairs
from muster.core.data import Data
from muster.core.errors import BrokenPluginError, UsageError
from muster.core.launch import Hang, Launch
from muster.core.measure import Evaluate, Measure
from muster.core.registry import ENGINES, WORKLOADS, declared, held_to, package_of, plugin_names
from muster.core.section import AutoInt, Fraction, PositiveInt, Section
from muster.core.workload import Workload

WORKLOAD = "What the ranks do: text2sql, causal-lm, fabric and so on, or a plug-in's name."
DATA = "Where the samples come from. At most one source is given; without one, the built-in data is used."
# Names of model.attention -> Transformers'.
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}


# What other programs have, and where people look for it (docs/planner.md).
_FEW_BITS = re.compile(
    r"(?!(?-i:fp8)$)(?:(?:mx|nv)?(?:fp|float)[-_]?[468](?:_.*)?|e[45]m[23]|int[48])", re.IGNORECASE
)
_SPLIT = re.compile(r"(?:tensor|pipeline|context|sequence|expert)(?:_model)?_parallel.*|[tpce]p(?:_size)?")


class Model(Section):
    """The network. `name`: a known size, a hub name or a folder; `config` changes or makes a configuration.
    """

    name: str | None = Field(
        None,
        description="A known size such as t5-small or gpt2, a Hugging Face hub name, or a local folder; "
        "`last`, or a run's id: the model that this run trained. Null: the model is described by `config` "
        "alone.",
    )
    init: Literal["pretrained", "random"] = Field(
        "pretrained",
        description="pretrained: start from the published weights. random: draw new weights for the model's "
        "configuration (no download of weights).",
    )
    config: dict[str, Any] | None = Field(
        None,
        description="Fields of the Transformers configuration. With `name` they change that model's "
        "configuration; without it they are the whole configuration.",
    )
    attention: Literal["auto", "sdpa", "flash", "eager"] = Field(
        "auto",
        description="How attention is computed. sdpa: PyTorch's scaled_dot_product_attention, which takes "
        "the fastest kernel that the device and the mask allow. flash: the flash-attn package, which must be "
        "installed. eager: plain matrix products. auto: Transformers' choice, sdpa for most models. It is "
        "config.attn_implementation by another name.",
    )
    quantized: bits.Bits | None = Field(
        None,
        description="With lora, keep the frozen weights of linear layers in 4 or 8 bits (bitsandbytes, on "
        "GPUs). nf4, fp4: half a byte each; -double: their scales are quantised as well. int8: a byte each. "
        "config.quantization_config of bitsandbytes is another name for it. Null: whole numbers.",
    )
    create: Literal["auto", "whole", "sharded"] = Field(
        "auto",
        description="How ranks build the model. whole: every rank builds it in its host's memory. sharded "
        "(ZeRO-3 and FSDP only): each rank builds its own shard; with FSDP the first rank still builds the "
        "whole model. auto: sharded where whole copies would not fit comfortably.",
    )
    position_std: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="With init: random, the standard deviation of T5's relative position biases. Null: the "
        "value that Transformers uses.",
    )
    tokenizer: str = Field(
        "auto",
        description="auto: the model's own tokenizer, or one trained on the data where the model has none. "
        "train: train one on the recipe's data. Otherwise a hub name or a folder.",
    )
    vocab_size: Annotated[int, Field(ge=300, le=1_000_000)] = Field(
        2048, description="Number of tokens of a tokenizer that is trained on the data (300 to 1,000,000)."
    )

    @model_validator(mode="before")
    @classmethod
    def _attends(cls, given: Any) -> Any:
        """Move `attention` into the configuration, which every part of Muster reads already."""
        if not isinstance(given, Mapping) or not isinstance(given.get("attention"), str):
            return given
        kind, config = ATTENTION.get(given["attention"]), given.get("config")
        if kind is None or not isinstance(config, Mapping | None):
            return given
        return {**given, "config": {**(config or {}), "attn_implementation": kind}}

    @model_validator(mode="before")
    @classmethod
    def _quantizes(cls, given: Any) -> Any:
        """Refuse Transformers' field, which describes weights in a checkpoint; the recipe has its own key."""
        config = given.get("config") if isinstance(given, Mapping) else None
        own = config.get("quantization_config") if isinstance(config, Mapping) else None
        if config is None or own is None:
            return given
        hint = f"model.quantized={'|'.join(get_args(bits.Bits))}, for {bits.PACKAGE}"
        if not isinstance(own, Mapping):
            raise ValueError(f"config.quantization_config is no mapping; {hint}")
        try:
            asked = bits.read(own)
        except ValueError as error:
            raise ValueError(f"config.quantization_config: {error}; {hint}") from None
        if given.get("quantized") not in (None, asked):
            raise ValueError(f"config.quantization_config says {asked}, and quantized {given['quantized']}")
        config = {name: value for name, value in config.items() if name != "quantization_config"}
        return {**given, "config": config or None, "quantized": asked}


class Engine(Section):
    """How the model is distributed over the ranks."""

    name: str = Field(
        "ddp",
        description="ddp: every rank holds the whole model (PyTorch DDP). fsdp: weights, gradients and "
        "optimizer states are sharded (PyTorch FSDP). deepspeed: ZeRO, at the stage given by `zero`.",
    )
    zero: Annotated[int, Field(ge=0, le=3)] | Literal["auto"] = Field(
        0,
        description="DeepSpeed's ZeRO stage, 0 to 3: what is sharded (0 nothing, 1 optimizer states, 2 also "
        "gradients, 3 also weights). auto: the plan takes the fastest stage that fits.",
    )
    offload: Literal["none", "optimizer", "optimizer+param"] = Field(
        "none", description="What DeepSpeed keeps in host memory instead of GPU memory."
    )
    sync_each_batch: bool | Literal["auto"] = Field(
        "auto",
        description="FSDP alone: reduce and scatter gradients after every micro-batch of a step, so that no "
        "rank holds whole ones of earlier micro-batches: less memory, more communication. auto: where "
        "micro-batches accumulate, and it is faster (a larger micro-batch) or nothing else fits.",
    )
    group: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="FSDP and ZeRO-3: so many neighbouring ranks, as a rule a host's, hold all weights "
        "among themselves, so that none are gathered over the links between groups; ranks hold more. FSDP: "
        "hybrid sharding (HSDP), gradients and optimizer states are sharded in the group as well. ZeRO-3: a "
        "second copy of the weights (hpZ). Null: all ranks are one group.",
    )
    config: str | None = Field(
        None, description="Path of your own DeepSpeed JSON file. Muster fills in its auto values."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="DeepSpeed JSON keys, nested as in the file; they override the keys that Muster writes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _splits(cls, given: Any) -> Any:
        for key in given if isinstance(given, Mapping) else ():
            if _SPLIT.fullmatch(str(key)):
                raise ValueError(
                    f"Muster has no {key}: engine.name=fsdp, or deepspeed with engine.zero=3, cuts the model "
                    "otherwise; Megatron-LM, NeMo and torchtitan split layers and sequences"
                )
        return given

    @property
    def stage(self) -> int:
        """ZeRO's stage in a job, whose plan has decided what was auto."""
        if self.zero == "auto":
            raise ValueError("ZeRO's stage is not decided yet")
        return self.zero


class BatchSpec(Section):
    """Two given, the third derived: global = micro x accumulation x world size."""

    exclusive: ClassVar[tuple[str, ...]] = ("global", "tokens")

    micro: AutoInt = Field(
        None,
        description="Samples per rank and forward pass (micro-batch). Auto or null: derived from the other "
        "numbers, or chosen by the plan.",
    )
    global_: AutoInt = Field(
        None,
        alias="global",
        description="Samples per optimizer step over all ranks. Auto or null: micro x accumulation x ranks.",
    )
    tokens: PositiveInt | Literal["auto"] | None = Field(
        None,
        description="Tokens per optimizer step over all ranks, instead of `global`. auto: the number that "
        "the "
        "published model of this size was trained with.",
    )
    accumulation: AutoInt = Field(
        None,
        description="Forward passes per optimizer step (gradient accumulation). Auto or null: derived from "
        "micro and global, else 1.",
    )
    split: Literal["even", "measured"] | list[PositiveInt] = Field(
        "even",
        description="How a micro-step's samples are divided among ranks of different speed (ddp only). even: "
        "all the same. measured: in proportion to measured speed. A list: samples of each rank.",
    )


class Train(Section):
    """The optimisation: AdamW, gradient clipping, a schedule."""

    epochs: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="Passes over the training data; fractions are allowed. The last batch of a pass is "
        "filled with samples of the same pass.",
    )
    max_steps: PositiveInt | None = Field(
        None, description="Number of optimizer steps; overrides `epochs`. Null: as `epochs` says."
    )
    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop, as a success, after this many minutes of training. Null: no limit."
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        5e-5,
        description="Peak learning rate of AdamW. auto: the rate that the published model of this size was "
        "trained with.",
    )
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"] = Field(
        "linear", description="Learning rate schedule, by Transformers' names."
    )
    min_learning_rate: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Learning rate at the last step of schedule cosine, which falls to it."
    )
    warmup: Annotated[float, Field(ge=0)] = Field(
        0, description="Warm-up steps of the learning rate; a number below 1 is a fraction of all steps."
    )
    optimizer: Literal["adamw", "adamw-8bit", "adamw-bf16"] = Field(
        "adamw",
        description="adamw-8bit: its moments take a byte each in place of four (bitsandbytes, on GPUs, with "
        "engine ddp). adamw-bf16: weights, gradients and moments are kept in bf16 alone, half of the memory; "
        "updates that are small beside a weight are lost (engines ddp and fsdp, models of text).",
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="AdamW's weight decay.")
    beta1: Fraction = Field(0.9, description="AdamW's beta1.")
    beta2: Fraction = Field(0.999, description="AdamW's beta2.")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW's epsilon.")
    clip: Annotated[float, Field(ge=0)] = Field(
        1.0, description="Largest norm of the gradients (gradient clipping); 0 switches clipping off."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Label smoothing factor; 0 switches it off."
    )
    seed: int = Field(42, description="Seed of the weights, the order of the data and dropout.")
    gradient_checkpointing: bool | Literal["auto"] = Field(
        False,
        description="Recompute activations in the backward pass instead of keeping them: less memory, more "
        "time. auto: used where it is faster, or where nothing else fits.",
    )
    compile: bool | Literal["auto", "cuda-graphs"] = Field(
        False,
        description="Compile the model with torch.compile. auto: on GPUs, where all batches have one shape, "
        "the run is long enough to win back the time that compiling takes, and nothing has to look into the "
        "model's layers. cuda-graphs: its kernels are launched as CUDA graphs as well (mode "
        "reduce-overhead), with engine ddp, batches of one shape and no accumulation.",
    )
    autocast: bool = Field(
        True,
        description="How a model computes in bf16 with engine ddp. true: PyTorch's autocast chooses the "
        "operations, the others stay in fp32. false: each pass casts all weights, and the whole model "
        "computes in bf16, as with FSDP and DeepSpeed, which takes less time and memory. Weights, gradients "
        "and optimizer states are kept in fp32 either way.",
    )
    fused_loss: bool | Literal["auto"] = Field(
        "auto",
        description="Compute the output layer and the loss together, some tokens at a time, so that the "
        "logits never lie in memory as a whole. auto: where they are many. For models of the families T5, "
        "GPT-2, OPT, Llama, Mistral and Qwen; others compute their logits whatever this says.",
    )
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Data loader processes per rank; 0: the rank loads its own data. auto: on GPUs as many "
        "as the workload's batches need, and cores and /dev/shm allow; on CPUs 0.",
    )

    @property
    def rate(self) -> float:
        """The learning rate of a job, whose plan has decided what was auto."""
        if self.learning_rate == "auto":
            raise ValueError("the learning rate is not decided yet")
        return self.learning_rate

    @property
    def checkpointing(self) -> bool:
        """Gradient checkpointing in a job, whose plan has decided what was auto."""
        if self.gradient_checkpointing == "auto":
            raise ValueError("gradient checkpointing is not decided yet")
        return self.gradient_checkpointing

    @property
    def compiled(self) -> bool:
        """Whether the model is compiled in a job, whose plan has decided what was auto."""
        if self.compile == "auto":
            raise ValueError("whether the model is compiled is not decided yet")
        return bool(self.compile)

    @property
    def cuda_graphs(self) -> bool:
        """Whether a compiled model's kernels are launched as CUDA graphs."""
        return self.compile == "cuda-graphs"

    @property
    def loaders(self) -> int:
        """Loader processes per rank; where that is still open, the rank loads its own data."""
        return 0 if self.workers == "auto" else self.workers

    @model_validator(mode="after")
    def _warms_up(self) -> Train:
        if self.schedule == "constant" and self.warmup:
            raise ValueError("schedule constant has no warm-up: schedule=constant_with_warmup, or warmup=0")
        if self.warmup >= 1 and self.warmup % 1:
            raise ValueError(f"warmup={self.warmup:g} is neither whole steps nor a fraction below 1")
        return self

    @model_validator(mode="after")
    def _ends_below(self) -> Train:
        if self.min_learning_rate and self.schedule != "cosine":
            raise ValueError(f"min_learning_rate is of schedule=cosine, and the schedule is {self.schedule}")
        if self.learning_rate != "auto" and self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate={self.min_learning_rate:g} is above learning_rate={self.learning_rate:g}"
            )
        return self


class Lora(Section):
    """Low-rank adapters by PEFT; None trains everything."""

    rank: PositiveInt = Field(16, description="Rank of the adapters' matrices.")
    alpha: Annotated[float, Field(gt=0)] = Field(32, description="Scale: adapters count alpha / rank times.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout of the adapters' input.")
    targets: list[str] | Literal["all-linear"] | None = Field(
        None, description="Names of the modules that get adapters, or all-linear. Null: PEFT's choice."
    )


class Checkpoint(Section):
    """Checkpoints to resume from, and the trained model."""

    every: PositiveInt | list[tuple[PositiveInt, PositiveInt | None]] | None = Field(
        None,
        description="Optimizer steps between checkpoints; or a list of [every, until] pairs, the last with "
        "null as its `until`. Null: no checkpoints.",
    )
    keep: PositiveInt | Literal["all"] = Field(
        2, description="How many of the newest complete checkpoints stay on disk; all: every one."
    )
    model: bool = Field(
        True, description="Save the trained model at the end. Benchmarks can switch it off to save time."
    )

    @field_validator("every", mode="before")
    @classmethod
    def _is_a_schedule(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            check_pairs(value)
        return value


# Sections that mean something where nothing is trained.
EVERYWHERE = ("launch", "hang", "env", "env_show", "env_kept", "force")


class Recipe(Workload, Section):
    """What to train: everything that decides the result, in one place. A workload's own keys are in its
    spec.py."""

    workload: str = Field("text2sql", description=WORKLOAD)
    model: Model = Field(default_factory=Model, description="The network: its name, weights and tokenizer.")
    data: Data = Field(default_factory=Data, description=DATA)
    engine: Engine = Field(
        default_factory=Engine, description="How the model is spread over the ranks: DDP, FSDP or DeepSpeed."
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = Field(
        "auto",
        description="Number format of the computation. auto: the fastest that every device and the model can "
        "use (bf16 on GPUs that have it; T5 never in fp16); fp32 on CPUs. tf32: fp32, but matrix "
        "products read 10 bits of each mantissa (Ampere and later). fp8: bf16, but the linear layers of a "
        "decoder compute in float8 (torchao; Ada, Hopper and later; causal-lm and sft, engines ddp and "
        "fsdp).",
    )
    loss_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="With fp16, the initial loss scale, a power of two. Null: 65536."
    )
    batch: BatchSpec = Field(
        default_factory=BatchSpec,
        description="Batch sizes: global = micro x accumulation x ranks. Give two, the third is derived.",
    )
    train: Train = Field(
        default_factory=Train, description="Length of the training, optimizer (AdamW) and learning rate."
    )
    lora: Lora | None = Field(
        None, description="Train low-rank adapters (PEFT) instead of all weights. Null: train all weights."
    )
    checkpoint: Checkpoint = Field(
        default_factory=Checkpoint,
        description="When checkpoints are written, how many are kept, and the trained model.",
    )
    evaluate: Evaluate = Field(
        default_factory=Evaluate, description="Evaluation on held-out data, during training and after it."
    )
    measure: Measure = Field(
        default_factory=Measure, description="What is measured during the run, and how often."
    )
    launch: Launch = Field(
        default_factory=Launch,
        description="How ranks are started on the hosts, and when a host counts as lost.",
    )
    hang: Hang = Field(
        default_factory=Hang, description="When a job without progress is looked into, and what follows."
    )
    env: dict[str, str | None] = Field(
        default_factory=dict,
        description="Environment variables of the ranks, by name. Null: as it is set where muster is "
        "started.",
    )
    env_show: list[str] = Field(
        default_factory=list,
        description="Variables whose values pages and files may show. Of the others, names alone.",
    )
    env_kept: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = Field(
        None, description="Set by muster: the file in which this user's machine keeps the hidden values."
    )
    force: bool = Field(
        False,
        description="Start although Muster would refuse: T5 in fp16, too little disk or memory, a field of "
        "model.config that this version does not know.",
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _computes(cls, value: Any) -> Any:
        if isinstance(value, str) and _FEW_BITS.fullmatch(value):
            raise ValueError(
                f"Muster does not compute in {value}: precision=fp8 is the nearest for decoders, bf16 for "
                "other models; TransformerEngine (in NeMo and Megatron-LM) and torchtitan do"
            )
        return value

    @property
    def bits(self) -> tuple[str, str] | None:
        """What bitsandbytes has to do in this recipe, as a key and a value; None: nothing."""
        if self.model.quantized is not None:
            return "model.quantized", self.model.quantized
        few = self.train.optimizer == "adamw-8bit"
        return ("train.optimizer", self.train.optimizer) if few else None

    @property
    def extras(self) -> list[str]:
        """Packages that this recipe's values need, and trainings in general do not."""
        few = [bits.PACKAGE] if self.bits else []
        return [*few, *([float8.PACKAGE] if self.precision == float8.NAME else [])]

    @property
    def offered_by(self) -> list[str]:
        """Packages of third parties that offer its workload and engine: ranks import both."""
        named = ((WORKLOADS, self.workload), (ENGINES, self.engine.name))
        return [package for group, name in named if (package := package_of(group, name))]

    @property
    def keeps_half(self) -> bool:
        """Whether weights, gradients and moments are kept in bf16 alone."""
        return self.train.optimizer == "adamw-bf16"

    @property
    def half(self) -> tuple[str, str, str] | None:
        """The key by which the whole model computes in bf16, its value, and its usual value; None: there is
        none, and the engine decides."""
        if self.keeps_half:
            return "train.optimizer", self.train.optimizer, "adamw"
        return None if self.train.autocast else ("train.autocast", "false", "true")

    @property
    def computes_half(self) -> bool:
        """Whether a key of the recipe makes the whole model compute in bf16."""
        return self.half is not None

    @classmethod
    def own_sections(cls) -> tuple[str, ...]:
        """Return the sections that this workload's recipe alone has."""
        return tuple(name for name in cls.model_fields if name not in Recipe.model_fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, as in a file."""
        return self.model_dump(mode="json", by_alias=True)

    def choosing(
        self,
        *,
        zero: int | None = None,
        checkpointing: bool | None = None,
        hosts: int | None = None,
        compiled: bool | None = None,
        fused_loss: bool | None = None,
        sync_each_batch: bool | None = None,
        group: int | None = None,
        workers: int | None = None,
    ) -> Recipe:
        """Return the recipe with ZeRO's stage, gradient checkpointing, the number of hosts, compiling, how
        the loss is computed, when gradients are reduced, groups of ranks (0: none) and loader processes
        decided; None: as it is."""
        spread = {"zero": zero, "sync_each_batch": sync_each_batch}
        engine: dict[str, Any] = {name: value for name, value in spread.items() if value is not None}
        if group is not None:
            engine["group"] = group or None
        given = {
            "gradient_checkpointing": checkpointing,
            "compile": compiled,
            "fused_loss": fused_loss,
            "workers": workers,
        }
        train = {name: value for name, value in given.items() if value is not None}
        launch = {} if hosts is None else {"hosts": hosts}
        return self.model_copy(
            update={
                "engine": self.engine.model_copy(update=engine),
                "train": self.train.model_copy(update=train),
                "launch": self.launch.model_copy(update=launch),
            }
        )


def recipe_class(workload: Any) -> type[Recipe]:
    """Return the class of a workload's recipe, from its spec.py. A workload that has none, or is not
    installed here, has the base class. Raises BrokenPluginError."""
    try:
        name = str(workload or "text2sql")
        return held_to(WORKLOADS, name, declared(WORKLOADS, name, "RECIPE", Recipe), Recipe)
    except BrokenPluginError:
        raise
    except UsageError:
        return Recipe


def recipe_classes() -> dict[str, type[Recipe]]:
    """Return, by name, the recipe classes of all workloads that are installed here and can be loaded."""
    classes = {}
    for name in plugin_names(WORKLOADS):
        with suppress(BrokenPluginError):
            classes[name.replace("_", "-")] = recipe_class(name)
    return classes


def recipe_from(data: Mapping[str, Any]) -> Recipe:
    """Return a recipe of its workload from plain data. Raises pydantic's ValidationError."""
    return recipe_class(data.get("workload")).model_validate(dict(data))
