"""What an engine is asked before a rank starts: how it spreads a model, and what follows for memory, time,
configuration and checkpoints. Pure: no torch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.hardware.devices import WIDE
from muster.core.job import Decision, Facts, Job, Placement
from muster.core.recipe import Engine, Recipe
from muster.core.recipes import validate
from muster.core.registry import ENGINES, declared, guarded, held_to, own_plugins
from muster.core.trace import Arithmetic, Parameter
from muster.engines.spread import ModelSpread, Tensors
from muster.engines.states import States
from muster.engines.traffic import Traffic


@dataclass(frozen=True)
class Fixed:
    """What a configuration of the user's own fixes: `merged` puts it into the recipe.

    `batch`: any of micro, accumulation, global; `train`: fields of the recipe's `train`; `optimizer`: the
    name of one that is no Adam, whose betas and epsilon are known where `train` has them; `schedule`: what
    the engine's own does with the learning rate, in words, empty: the recipe's; `rise`: the key and the steps
    in which that rises to its peak, None: those of the recipe; `stage`: ZeRO's; `spread`: how the model is
    spread, so that no plan changes that.
    """

    precision: str | None = None
    batch: Mapping[str, int] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    schedule: str = ""
    rise: tuple[str, int] | None = None
    stage: int | None = None
    spread: bool = False

    @property
    def replaced(self) -> set[str]:
        """Keys of the recipe whose values have no effect."""
        groups = (
            (self.train, tuple(self.train)),
            (self.optimizer, ("optimizer", "beta1", "beta2", "epsilon")),
            (self.schedule, ("schedule",)),
            (self.rise, ("warmup",)),
        )
        keys = {f"train.{key}" for holds, names in groups if holds for key in names}
        return keys if self.stage is None else {*keys, "engine.zero"}


@dataclass(frozen=True)
class EngineSpec:
    """Answer for an engine that has a runtime and no spec: the whole model on every rank, with the Trainer's
    optimizer, and nothing that can be planned. `name`: as a recipe says it."""

    name: str

    title: ClassVar[str] = ""  # the name as its makers write it; empty: the same
    packages: ClassVar[tuple[str, ...]] = ()  # that its ranks import beside those of any engine
    stages: ClassVar[tuple[int, ...]] = ()  # that engine.zero can ask for
    offloads: ClassVar[tuple[str, ...]] = ("none",)  # that engine.offload can ask for
    # Each rank trains the whole model by itself, with PyTorch alone: its speed can be measured, and is its
    # device's.
    plain: ClassVar[bool] = False
    made_by_first: ClassVar[bool] = False  # model.create=sharded: the first rank makes it and hands out parts
    # Ranks hold whole gradients of a step's earlier micro-batches, but for engine.sync_each_batch.
    defers_reduction: ClassVar[bool] = False
    keeps_half: ClassVar[bool] = False  # trains with weights, gradients and moments in bf16 alone
    float8: ClassVar[bool] = False  # trains with linear layers that compute in fp8
    groups: ClassVar[str] = ""  # what engine.group has it do, in a word; empty: it has no groups
    relief: ClassVar[bool] = False  # offered where another engine's ranks hold the whole model, and too much
    # Overrides beside its name with which ranks hold a part of the weights, offered where another engine that
    # does so needs too much; None: never.
    cutting: ClassVar[dict[str, str] | None] = None
    one_disk: ClassVar[bool] = False  # the first host alone writes checkpoints
    gathers_optimizer: ClassVar[bool] = False  # checkpoints have it whole, by way of the first rank
    pickles: ClassVar[bool] = True  # loading a checkpoint may run what its files say
    whole_checkpoints: ClassVar[bool] = False  # that any number of ranks reads
    gathers_tensors: ClassVar[bool] = False  # that it cuts one by one, not a module in one block
    copies: ClassVar[int] = 4  # times a gradient is read and written: into a bucket, averaged, out again

    def extras(self, recipe: Recipe) -> tuple[str, ...]:
        """Name packages that the first rank imports for this recipe and not for others. Raises
        RecipeError."""
        return ()

    # --- words -------------------------------------------------------------------------------------------

    @property
    def called(self) -> str:
        """As its makers write it."""
        return self.title or self.name

    def words(self, stage: int) -> str:
        """Name the engine in a sentence: DDP, ZeRO-3."""
        return f"ZeRO-{stage}" if self.stages else self.called

    def label(self, stage: int | str, group: int = 0) -> str:
        """Name it in a column: ddp, deepspeed ZeRO-3, fsdp in groups of 8."""
        grouped = f" in groups of {group}" if group else ""
        return (f"{self.name} ZeRO-{stage}" if self.stages else self.name) + grouped

    def described(self, engine: Engine) -> str:
        """Name a recipe's section in a column."""
        named = self.label(engine.zero, engine.group or 0)
        return named + (" + offload" if engine.offload != "none" else "")

    # --- the recipe, and a configuration of the engine's own ---------------------------------------------

    def checked(self, recipe: Recipe) -> Recipe:
        """Check the recipe, which `merged` has not changed yet. Return it. Raises RecipeError for what the
        engine cannot do."""
        engine = recipe.engine
        for key, asked, what in (
            ("config", engine.config, "is"),
            ("zero", engine.zero, f"ZeRO-{engine.zero} is"),
            ("options", engine.options, f"{', '.join(engine.options)} in it is"),
        ):
            if asked and not self.stages:
                able = next(each for each in own_specs() if each.stages)
                raise RecipeError(
                    f"{what} {able.called}'s, and the engine is {self.name}",
                    where=f"engine.{key}",
                    hint=f"engine.name={able.name}",
                )
        if engine.offload not in self.offloads:
            ways = [f"engine.offload={each}" for each in self.offloads[1:]]
            ways += [f"engine.name={each.name}" for each in own_specs() if engine.offload in each.offloads]
            raise RecipeError(
                f"{self.called} offloads {' or '.join(self.offloads[1:]) or 'nothing'}",
                where="engine.offload",
                hint=", or ".join(ways),
            )
        self.check_sync(engine)
        self.check_group(engine)
        return recipe

    def check_sync(self, engine: Engine) -> None:
        """Raise RecipeError where gradients shall be reduced in every micro-step, and that spares nothing."""
        if engine.sync_each_batch is True and not self.defers_reduction:
            able = [f"engine.name={each.name}" for each in own_specs() if each.defers_reduction]
            raise RecipeError(
                f"is true, and ranks under {self.called} hold no less with it",
                where="engine.sync_each_batch",
                hint=f"leave it out, or {' or '.join(able)}",
            )

    def check_group(self, engine: Engine) -> None:
        """Raise RecipeError where ranks shall hold weights in groups, and the engine cuts none."""
        if engine.group and not self.groups:
            able = [f"engine.name={each.name} ({each.groups})" for each in own_specs() if each.groups]
            raise RecipeError(
                f"is {engine.group}, and {self.called} cuts no weights",
                where="engine.group",
                hint=f"leave it out, or {' or '.join(able)}",
            )

    def given(self, recipe: Recipe) -> Fixed:
        """Return what the user's own configuration for the engine fixes. Raises RecipeError."""
        return Fixed()

    def fixed(self, config: Mapping[str, Any]) -> Fixed:
        """Return the same of a whole configuration, as `config` made it."""
        return Fixed()

    def decisions(self, recipe: Recipe) -> list[Decision]:
        """Return what it fixes, as decisions of the plan."""
        return []

    def uncounted(self, recipe: Recipe, precision: str) -> list[str]:
        """Name settings of the user's own configuration that change memory or traffic, and that no plan
        counts."""
        return []

    def check_length(self, recipe: Recipe, steps: int | None) -> None:
        """Raise RecipeError where the user's own configuration is for another number of steps. None: not
        known."""

    def open_stages(self, recipe: Recipe) -> Sequence[int | None]:
        """Return the stages that the recipe leaves open, mildest first; None: as it is. Raises
        RecipeError."""
        return (None,)

    def config(self, recipe: Recipe, batch: Batch, precision: str) -> dict[str, Any] | None:
        """Make the configuration that the engine reads, as its JSON; None: it has none. Raises
        RecipeError."""
        return None

    def filled(self, config: Mapping[str, Any], recipe: Recipe, width: int | None) -> dict[str, Any]:
        """Fill in what a configuration leaves to the recipe. `width`: the model's hidden size; None: not
        known."""
        return dict(config)

    def compiles(self, section: Mapping[str, Any]) -> bool:
        """Return whether it compiles operators at the first step. `section`: `engine` of a recipe."""
        return False

    # --- how the model is spread -------------------------------------------------------------------------

    def spread_of(self, recipe: Recipe, precision: str, width: int) -> dict[str, Any]:
        """Return fields of ModelSpread that a recipe decides, as the engine will read its configuration."""
        return {}

    def sizes(self, stage: int, width: int) -> dict[str, Any]:
        """Return fields of ModelSpread that Muster's own configuration has at a stage."""
        return {"bucket": 0}

    def lighter(self, stage: int, offload: str) -> Iterator[dict[str, str]]:
        """Yield overrides with which ranks hold less, mildest first."""
        yield from ()

    def casts_model(self, ranks: int = 2) -> bool:
        """Return whether the model itself, and what is exchanged of it, is in the chosen precision; else it
        stays in fp32 and autocast makes copies."""
        return False

    def arithmetic(self, precision: str, ranks: int, *, whole: bool = False) -> Arithmetic:
        """Return what the passes compute in. `whole`: the recipe's computes_half."""
        if precision in WIDE:
            return "fp32"
        return "half" if whole or self.casts_model(ranks) else "autocast"

    def exchanged(self, spread: ModelSpread) -> int:
        """Return the bytes of a value as it is exchanged."""
        return spread.element if self.casts_model() else spread.kept

    def weight_bytes(self, spread: ModelSpread) -> int:
        """Return the bytes of a weight as a rank keeps it."""
        return spread.kept

    def shards_weights(self, stage: int, ranks: int = 2) -> bool:
        """Return whether a rank holds a part of the weights."""
        return False

    def optimizer_parts(self, spread: ModelSpread) -> int:
        """Return how many ranks the optimizer's states are cut over; 1: each holds all."""
        return 1

    def states(self, spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States | None:
        """Count what a rank holds; rank None: the one that holds most. None: not known."""
        return None

    def gathers_to_draw(self, spread: ModelSpread, tensors: Tensors) -> int | None:
        """Return bytes of weights that a rank gathers beside its own to draw answers; None: as in any
        pass."""
        return None

    def traffic(self, parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic | None:
        """List what several ranks exchange per optimizer step. None: not known."""
        return None

    def handling(self, parameters: Sequence[Parameter], stage: int) -> float:
        """Return the seconds per micro-step that its own Python takes for these tensors, beyond PyTorch's."""
        return 0.0

    def in_turn(self, stage: int) -> float:
        """Return the share of a micro-step's computation on a GPU that waits for this engine's Python, rather
        than run beside it."""
        return 0.0

    def crossings(self, spread: ModelSpread) -> int:
        """Return how often gradients and new weights of an optimizer step cross the bus to an optimizer in
        host memory: down and up."""
        return 2 if spread.moves_optimizer else 1

    # --- checkpoints -------------------------------------------------------------------------------------

    def cannot_resume(
        self, recipe: Recipe, before: Job, places: Sequence[Placement], facts: Facts
    ) -> tuple[str, str] | None:
        """Return why these ranks cannot read a checkpoint of the job `before`, and a hint; None: they can."""
        if self.whole_checkpoints or sum(place.slots for place in places) == before.world_size:
            return None
        return f"{self.name} does not say that it can", f"hosts with {before.world_size} slots in all"


def merged(recipe: Recipe) -> Recipe:
    """Merge what the user's own configuration for its engine fixes into a recipe. Of `train` and ZeRO's
    stage, the configuration wins, since a recipe's own always has a value. Raises RecipeError where both give
    a precision or a batch number, and they differ, or where a recipe cannot have a value."""
    fixed, path = spec_of(recipe.engine.name).given(recipe), recipe.engine.config
    if fixed.precision and recipe.precision not in ("auto", fixed.precision):
        switched = "fp16 and bf16 off" if fixed.precision == "fp32" else f"{fixed.precision} on"
        raise RecipeError(
            f"is {recipe.precision}, but {path} switches {switched}",
            where="precision",
            hint=f'precision={fixed.precision}, or "auto" in that file',
        )
    given = recipe.batch.model_dump(by_alias=True)
    for name, value in fixed.batch.items():
        if given[name] not in (None, value):
            raise RecipeError(
                f"is {given[name]}, but {path} says {value}",
                where=f"batch.{name}",
                hint=f'put "auto" there, or batch.{name}=auto here',
            )
    if "global" in fixed.batch and recipe.batch.tokens is not None:
        raise RecipeError(
            f"is given, and {path} fixes the global batch",
            where="batch.tokens",
            hint='put "auto" there, or batch.tokens=null here',
        )
    data = recipe.as_dict()
    made = {
        **data,
        "engine": {**data["engine"], **({} if fixed.stage is None else {"zero": fixed.stage})},
        "precision": fixed.precision or recipe.precision,
        "batch": {**data["batch"], **fixed.batch},
        "train": {**data["train"], **fixed.train},
    }
    return recipe if made == data else validate(made, where=path or "engine.options")


def overruled(recipe: Recipe, keys: Container[str]) -> list[str]:
    """Say which of the recipe's `keys` have no effect, since the user's own configuration for the engine has
    another value."""
    fixed, source = spec_of(recipe.engine.name).given(recipe), recipe.engine.config or "engine.options"
    says = {f"train.{key}": value for key, value in fixed.train.items()}
    says |= {"engine.zero": fixed.stage} | ({"train.warmup": fixed.rise[1]} if fixed.rise else {})
    values = {"engine.zero": recipe.engine.zero} | {f"train.{key}": each for key, each in recipe.train}
    return [
        f"{key}={values[key]} has no effect: {source} "
        + (f"makes it {says[key]}" if key in says else "has its own")
        for key in sorted(fixed.replaced)
        if key in keys and (key not in says or values[key] not in ("auto", says[key]))
    ]


@cache
def spec_of(name: str) -> EngineSpec:
    """Return the spec of the engine of this name. Raises UsageError with near names, and
    BrokenPluginError."""
    with guarded(ENGINES, name):
        return held_to(ENGINES, name, declared(ENGINES, name, "SPEC", EngineSpec), EngineSpec)(name)


def own_specs() -> list[EngineSpec]:
    """Return the specs of Muster's own engines, by name."""
    return [spec_of(name) for name in sorted(own_plugins(ENGINES))]


def packages() -> tuple[str, ...]:
    """Name what ranks of any of Muster's own engines import, beside what all of them do."""
    return tuple(dict.fromkeys(each for spec in own_specs() for each in spec.packages))
