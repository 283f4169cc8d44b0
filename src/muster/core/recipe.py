"""What to train: one recipe, as frozen, validated data. `core/recipes.py` reads and merges the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from muster.core.checkpoints import check_pairs
from muster.core.data import Data, FabricData, ImageData, TextData, TextToSqlData
from muster.core.launch import Launch
from muster.core.measure import Evaluate, Measure
from muster.core.section import AutoInt, Bytes, EnvText, Fraction, PositiveInt, Section


class Model(Section):
    """The network. `name` is a known size, a hub name or a folder; `config` changes or makes a
    configuration."""

    name: str | None = Field(None, description="t5-small ... t5-3b, a hub name, or a local folder")
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: from the configuration alone"
    )
    config: dict[str, Any] | None = Field(
        None, description="fields of the model's configuration; without `name`, the whole of it"
    )
    create: Literal["auto", "whole", "sharded"] = Field(
        "auto",
        description="whole: by every rank in its host's memory; sharded (ZeRO-3, FSDP): no rank but FSDP's "
        "first ever holds all of it; auto: sharded where the whole would not fit well",
    )
    position_std: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="init random: spread of T5's relative position biases; None: as Transformers draws them",
    )
    tokenizer: str = Field("auto", description="auto, train (on the recipe's data), a hub name or a folder")
    vocab_size: Annotated[int, Field(ge=300, le=1_000_000)] = Field(
        2048, description="entries of a tokenizer trained on the data"
    )


class Engine(Section):
    """How the model is spread over the ranks."""

    name: Literal["ddp", "fsdp", "deepspeed"] = "ddp"
    zero: Annotated[int, Field(ge=0, le=3)] | Literal["auto"] = Field(
        0, description="DeepSpeed's ZeRO stage; auto: the fastest that fits"
    )
    offload: Literal["none", "optimizer", "optimizer+param"] = Field("none", description="to host memory")
    config: str | None = Field(
        None, description="a DeepSpeed JSON file of your own; its auto values are filled"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="DeepSpeed keys laid over those that Muster writes"
    )

    @property
    def stage(self) -> int:
        """ZeRO's stage in a job, whose plan has decided what was auto."""
        if self.zero == "auto":
            raise ValueError("ZeRO's stage is not decided yet")
        return self.zero

    @property
    def may_shard_weights(self) -> bool:
        """Whether a forward pass gathers weights; also where a file of the user's own decides that."""
        if self.name != "deepspeed":
            return self.name == "fsdp"
        return bool(self.config) or "zero_optimization" in self.options or self.stage == 3


class BatchSpec(Section):
    """Two given, the third derived: global = micro x accumulation x world size."""

    exclusive: ClassVar[tuple[str, ...]] = ("global", "tokens")

    micro: AutoInt = Field(None, description="samples per rank and forward pass")
    global_: AutoInt = Field(None, alias="global", description="samples per optimizer step")
    tokens: PositiveInt | Literal["auto"] | None = Field(
        None,
        description="tokens per optimizer step, in place of `global`; auto: those that a published size was "
        "trained with",
    )
    accumulation: AutoInt = Field(None, description="forward passes per optimizer step")
    split: Literal["even", "measured"] | list[PositiveInt] = Field(
        "even",
        description="measured: each rank gets a share of every micro-step in proportion to its speed; or "
        "the shares themselves, one number of samples per rank (ddp)",
    )


class Train(Section):
    """The optimisation: AdamW, gradient clipping, a schedule."""

    epochs: Annotated[float, Field(gt=0)] = 1.0
    max_steps: PositiveInt | None = Field(None, description="optimizer steps; overrides epochs")
    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="stop after so much training time, as a success"
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        5e-5, description="auto: the one that a published size was trained with"
    )
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"] = "linear"
    warmup: Annotated[float, Field(ge=0)] = Field(0, description="steps; below 1: a fraction of all steps")
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip: Annotated[float, Field(ge=0)] = Field(1.0, description="gradient norm; 0 switches clipping off")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: int = 42
    gradient_checkpointing: bool | Literal["auto"] = Field(
        False,
        description="compute activations twice, and keep few; auto: where that is faster, or fits alone",
    )
    compile: bool = Field(False, description="torch.compile")
    workers: Annotated[int, Field(ge=0)] = Field(0, description="data loader processes per rank")

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

    @model_validator(mode="after")
    def _warms_up(self) -> Train:
        if self.schedule == "constant" and self.warmup:
            raise ValueError("schedule constant has no warm-up: schedule=constant_with_warmup, or warmup=0")
        return self


class Lora(Section):
    """Low-rank adapters by PEFT; None trains everything."""

    rank: PositiveInt = 16
    alpha: Annotated[float, Field(gt=0)] = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: list[str] | Literal["all-linear"] | None = Field(
        None, description="module names; None: PEFT's choice"
    )


class Checkpoint(Section):
    """Checkpoints to resume from, and the trained model."""

    every: PositiveInt | list[tuple[PositiveInt, PositiveInt | None]] | None = Field(
        None,
        description="optimizer steps; or pairs [every, until], the last until null for the rest; None: no "
        "checkpoints",
    )
    keep: PositiveInt | Literal["all"] = Field(
        2, description="the last complete ones that stay on disk; all: every one"
    )
    model: bool = Field(True, description="save the trained model at the end; a benchmark needs none")

    @field_validator("every", mode="before")
    @classmethod
    def _is_a_schedule(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            check_pairs(value)
        return value


class Fabric(Section):
    """What the fabric workload measures."""

    largest: Bytes | None = Field(
        None, description="message, in bytes or such as 64MiB; None: 64 MiB on CPUs, 1 GiB on GPUs"
    )
    pairs: Literal["sample", "all"] = Field(
        "all", description="of hosts, point to point. sample: neighbours in a ring"
    )
    matmul: bool = Field(True, description="matrix products: on each device, and one split over all ranks")
    seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="of measuring in all, divided among the measurements"
    )


class Recipe(Section):
    """What to train: everything that decides the result, in one place."""

    trains: ClassVar[bool] = True  # else model, engine, batch and the like mean nothing

    workload: str = "text2sql"
    model: Model = Field(default_factory=Model)
    data: Data = Field(default_factory=Data)
    engine: Engine = Field(default_factory=Engine)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    loss_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="fp16: the initial loss scale; None: 2^16"
    )
    batch: BatchSpec = Field(default_factory=BatchSpec)
    train: Train = Field(default_factory=Train)
    lora: Lora | None = None
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    measure: Measure = Field(default_factory=Measure)
    launch: Launch = Field(default_factory=Launch)
    env: dict[str, EnvText] = Field(default_factory=dict, description="environment variables of the ranks")
    force: bool = Field(
        False, description="go on where Muster would refuse (T5 in fp16, too little disk or memory)"
    )

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain data, as it stands in a file."""
        return self.model_dump(mode="json", by_alias=True)

    def choosing(
        self, *, zero: int | None = None, checkpointing: bool | None = None, hosts: int | None = None
    ) -> Recipe:
        """With ZeRO's stage, gradient checkpointing and the number of hosts decided; None: as it is."""
        engine = {} if zero is None else {"zero": zero}
        train = {} if checkpointing is None else {"gradient_checkpointing": checkpointing}
        launch = {} if hosts is None else {"hosts": hosts}
        return self.model_copy(
            update={
                "engine": self.engine.model_copy(update=engine),
                "train": self.train.model_copy(update=train),
                "launch": self.launch.model_copy(update=launch),
            }
        )


class TextToSqlRecipe(Recipe):
    """An encoder-decoder model learns to translate questions."""

    data: TextToSqlData = Field(default_factory=TextToSqlData)


class CausalLmRecipe(Recipe):
    """A language model learns to go on with text."""

    workload: str = "causal-lm"
    data: TextData = Field(default_factory=TextData)


class ImageRecipe(Recipe):
    """A vision model learns to name what is on an image."""

    workload: str = "image-classification"
    data: ImageData = Field(default_factory=ImageData)


class FabricRecipe(Recipe):
    """The hosts' collectives, links and matrix products are measured; nothing is trained."""

    trains: ClassVar[bool] = False

    workload: str = "fabric"
    data: FabricData = Field(default_factory=FabricData)
    fabric: Fabric = Field(default_factory=Fabric)


RECIPES: dict[str, type[Recipe]] = {
    "text2sql": TextToSqlRecipe,
    "causal-lm": CausalLmRecipe,
    "image-classification": ImageRecipe,
    "fabric": FabricRecipe,
}


def recipe_class(workload: Any) -> type[Recipe]:
    """What a workload's recipe may hold; a third party's holds what all may."""
    return RECIPES.get(str(workload or "text2sql").replace("_", "-"), Recipe)


def recipe_from(data: Mapping[str, Any]) -> Recipe:
    """Plain data -> a recipe of its workload. Raises pydantic's ValidationError."""
    return recipe_class(data.get("workload")).model_validate(dict(data))
