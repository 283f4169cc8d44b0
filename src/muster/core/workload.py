"""What a workload answers for itself and for a recipe of it: the base of all recipes, with usual answers.

A workload's own recipe (spec.py in its folder) overrides these. Code that checks, plans, prepares or reports
asks here, and never which workload it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from muster.core.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

# What makes a training a short one: it fills caches (kernels, models, data) and measures nothing.
SHORT_TRAINING = (
    "train.max_steps=3", "train.max_minutes=null", "evaluate.after=false", "evaluate.every=null",
    "checkpoint.every=null", "checkpoint.model=false", "measure.profile=none",
)  # fmt: skip


@dataclass(frozen=True)
class Lengths:
    """Tokens of a sample, with padding. `target`: the decoder's, where there are two stacks; `sequences`: of
    so many tokens each, 2 where a sample is a pair."""

    tokens: int
    target: int = 0
    sequences: int = 1

    @property
    def all(self) -> int:
        """Tokens of a sample in all."""
        return self.sequences * (self.tokens + self.target)

    def rounded(self, multiple: int) -> Lengths:
        """Return them as they are padded to multiples."""
        tokens, target = (-(-each // multiple) * multiple for each in (self.tokens, self.target))
        return replace(self, tokens=tokens, target=target)


# What becomes of the last layer's output in a training step. logits: all at once, or in Muster's parts;
# all logits: at once; log-probs: those of the tokens that are there, by TRL in tiles; numbers: one of each
# sequence.
Output = Literal["logits", "all logits", "log-probs", "numbers"]


@dataclass(frozen=True)
class HeldModel:
    """A model that takes part in a step besides the one that `model` names.

    `role`: its purpose; `source`: its name, as in `model.name`, None: it has the trained model's shape;
    `output`: see Output; `trained`: by the same optimizer; `sharded`: by an engine that shards weights,
    else every rank has it whole in the precision that is computed in; `shared`: its weights are the trained
    model's (adapters off), so that it takes time and no memory; `config`: its own, where known.
    """

    role: str
    source: str | None = None
    output: Output = "logits"
    trained: bool = False
    sharded: bool = True
    shared: bool = False
    config: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Drawing:
    """Answers that the model generates in a step: longest prompt and answer in tokens; all of a rank's step
    `at_once`, or a micro-batch of them."""

    prompt: int
    answer: int
    at_once: bool = True


@dataclass(frozen=True)
class Survey:
    """What a training will read, as far as this machine can see. `samples`: of an epoch; None: not known;
    `notes`: what of the data is held out, left out, changed or cut, for people; `some`: samples whose tokens
    are counted; `lengths`: their tokens as they are trained on, of each part that is padded by itself;
    `whole`: all samples, held-out ones among them, where they are few enough to be counted; `longest`: tokens
    that none of them exceeds, None: not known."""

    samples: int | None = None
    notes: tuple[str, ...] = ()
    some: tuple[Any, ...] = field(default=(), repr=False)
    lengths: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    whole: tuple[Any, ...] = field(default=(), repr=False)
    longest: Lengths | None = None


@dataclass(frozen=True)
class Spot:
    """A host's place in a job, and where its ranks connect. `python`: its interpreter."""

    python: str
    node: int
    nodes: int
    slots: int
    address: str
    port: int


@dataclass(frozen=True)
class Program:
    """What a host starts that is not Muster's own: the words of a command, started once for `each` rank or
    for the host; `names`: further names of a rank's variables; `torchrun`: it is torchrun, which starts the
    host's ranks and can write what each prints to a file."""

    argv: tuple[str, ...]
    each: str
    names: tuple[str, ...] = ()
    torchrun: bool = False


class Workload:
    """The questions, answered as most workloads would."""

    trains: ClassVar[bool] = True  # else model, engine, batch and the like mean nothing
    foreign: ClassVar[bool] = False  # its ranks are no program of Muster's: see `program`
    families: ClassVar[tuple[ModuleType, ...]] = ()  # of models that it trains, the usual one first; (): any
    tokenized: ClassVar[bool] = True  # samples become tokens: the model has a vocabulary
    packed: ClassVar[bool] = False  # each sample is one full sequence of tokens
    dropout: ClassVar[bool] = True  # else it trains without, whatever its model says
    # How its model is traced: TRACED of its folder's model.py; MODULE:NAME of another one; False: it is not.
    traced: ClassVar[bool | str] = False
    quantizes: ClassVar[bool] = (
        False  # weights may be in 4 or 8 bits: its model is made by worker/decoders.py
    )
    float8: ClassVar[bool] = False  # trains a decoder by worker/trainer.py alone: it may compute in fp8
    packages: ClassVar[tuple[str, ...]] = ()  # that its ranks import beside those of any workload
    output: ClassVar[Output] = "logits"  # of the trained model
    # (section, key) of further models that a recipe names: anchored and looked up as model.name is.
    other_models: ClassVar[tuple[tuple[str, str], ...]] = ()
    cut_by: ClassVar[str] = ""  # the keys that say how long a sample may be, where longer ones are cut
    # Fields of the model's configuration that another key of the recipe sets: image_size -> data.size.
    config_keys: ClassVar[Mapping[str, str]] = {}
    metric: ClassVar[str] = "exact match"  # what its answers to held-out samples are judged by
    # What kinds of answers are called where they are not texts: by the names of reports/answers.py.
    answer_names: ClassVar[Mapping[str, str]] = {}
    short: ClassVar[tuple[str, ...]] = SHORT_TRAINING  # changes of a recipe that make its job a short one
    # Python that loads the trained model from the folder {model} and gives it {question}, for {new} tokens;
    # {recipe} is the run's. `loading_chat`: where its tokenizer has a chat template.
    loading: ClassVar[str] = ""
    loading_chat: ClassVar[str] = ""

    @classmethod
    def usual_type(cls) -> str | None:
        """Return Transformers' model type where the configuration states none."""
        return str(cls.families[0].MODEL_TYPES[0]) if cls.families else None

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Check what can be seen of the data before a host is asked. `path`: data.path, where this machine
        has it; `config`: of the model, as far as it is known here. Raises DataError and RecipeError.

        Return what was read, which `survey` then need not read again; None: nothing that it could use.
        """
        return None

    def describe_data(self, path: Path) -> str:
        """Return what of data.path is trained on and what is held out, in words. Raises DataError."""
        return str(path)

    def epoch_samples(self) -> int | None:
        """Return the training samples of an epoch, where they can be counted here; it may mean reading the
        data."""
        return None

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Survey the data for the plan of a model of this configuration (None: not known here). It may mean
        reading them. Raises DataError. `checked`: what `check_data` returned; left out where it returned
        nothing."""
        return Survey(self.epoch_samples())

    def config_of_data(self) -> dict[str, Any]:
        """Return the fields of the model's configuration that the data decide. Raises DataError."""
        return {}

    def assumed(self, config: Mapping[str, Any]) -> list[str]:
        """Return what a plan for a model of this configuration assumes of the data, in words."""
        return []

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths | None:
        """Return the longest sample, for a model of this configuration; None: not known."""
        return None

    def program(self, spot: Spot) -> Program:
        """Return what a host starts, of a workload that is `foreign`."""
        raise NotImplementedError

    @property
    def imported(self) -> tuple[str, ...]:
        """The packages that a workload imports that does not train."""
        return ("torch", "pydantic")

    def before_start(self, base: str | None = None) -> dict[str, Any]:
        """Return what its agent must check on a host, besides what all need. `base`: the job's folder there;
        None: before there is one."""
        return {}

    def files(self) -> tuple[str, ...]:
        """Return files that its ranks read besides models and data, by whole paths."""
        return ()

    def held_models(self) -> tuple[HeldModel, ...]:
        """Return the models of a step besides the one that is trained."""
        return ()

    def drawing(self) -> Drawing | None:
        """Return the answers that a step generates before it trains; None: it generates none."""
        return None

    @property
    def loaders(self) -> int:
        """How many processes make a rank's batches as fast as a GPU trains on them; 0: the rank itself."""
        return 0

    @property
    def padding_varies(self) -> bool:
        """Whether each batch is padded to its own longest sample, on GPUs to a multiple of 8 tokens."""
        return False

    @property
    def shapes_vary(self) -> bool:
        """Whether batches have more shapes than are worth compiling."""
        return self.padding_varies

    def with_lengths(self, lengths: Lengths) -> Self:
        """Return the recipe with every sample padded to so many tokens, where padding varies."""
        return self

    def example(self, question: str | None) -> tuple[str, int] | None:
        """Return a question as the trained model reads it, and the most tokens that it answers with; None: it
        reads no text. `question`: None for any."""
        return question or "The ", 64

    def with_schema(self, question: str, schema: str) -> str:
        """Return a question about tables of this schema, as the trained model reads it. Raises UsageError:
        the model reads no schema."""
        raise UsageError("the model was trained without schemas", where="--schema", hint="ask without it")

    def lacks_schema(self, question: str) -> bool:
        """Return whether the trained model expects a schema with the question, and there is none."""
        return False
